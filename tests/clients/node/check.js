// Checks a running `weft serve` with the gRPC library of Node, an HTTP/2 and
// protobuf implementation of its own: types come from server reflection alone.
//
// usage: check.js ADDRESS PID    (PID of the server, which is told to drain)
'use strict';

const assert = require('assert');
const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const SERVICE = 'weft.v1.Generation';
const PATIENCE = 20000;
const LOAD = {keepCase: true, longs: Number, oneofs: true, defaults: true};
const PROTO = path.join(__dirname, '..', '..', '..', 'proto');

const credentials = () => grpc.credentials.createInsecure();
const soon = (ms = PATIENCE) => ({deadline: Date.now() + ms});

function varint(n) {
  const out = [];
  for (; n > 127; n >>>= 7) out.push((n & 127) | 128);
  return Buffer.from([...out, n]);
}

// Asks one question of a bidirectional stream.
function askOnce(stub, request) {
  return new Promise((resolve, reject) => {
    const call = stub.ServerReflectionInfo(soon());
    let answer;
    call.on('data', (a) => { answer = a; });
    call.on('error', reject);
    call.on('end', () => resolve(answer));
    call.write(request);
    call.end();
  });
}

// The service's client, made of the descriptors that the server shows.
async function reflect(address, version) {
  const file = `grpc/reflection/${version}/reflection.proto`;
  const known = grpc.loadPackageDefinition(
      loader.loadSync(path.join(PROTO, file), LOAD));
  const stub = new known.grpc.reflection[version].ServerReflection(
      address, credentials());
  const list = await askOnce(stub, {list_services: '*'});
  const names = list.list_services_response.service.map((s) => s.name);
  assert(names.includes(SERVICE), `${version}: ${names}`);
  const found = await askOnce(stub, {file_containing_symbol: SERVICE});
  stub.close();
  const files = found.file_descriptor_response.file_descriptor_proto;
  const set = files.map((f) => Buffer.concat(
      [Buffer.from([0x0a]), varint(f.length), f]));
  const types = grpc.loadPackageDefinition(
      loader.loadFileDescriptorSetFromBuffer(Buffer.concat(set), LOAD));
  return new types.weft.v1.Generation(address, credentials());
}

// Reads a stream to its end: {messages, code, details, metadata}.
function read(call, onData = () => {}) {
  return new Promise((resolve) => {
    const messages = [];
    let metadata = new grpc.Metadata();
    call.on('data', (m) => { messages.push(m); onData(m, call); });
    call.on('error', () => {});
    call.on('status', (s) => resolve(
        {messages, code: s.code, details: s.details, metadata: s.metadata}));
  });
}

function unary(client, method, request) {
  return new Promise((resolve, reject) => client[method](
      request, soon(), (error, answer) =>
        error ? reject(error) : resolve(answer)));
}

const prompt = (sampling) => ({
  tokenized: {input_ids: [1, 2, 3]}, stream: true, sampling_params: sampling});

async function endless(client) {
  const model = await unary(client, 'GetModel', {});
  const most = Math.min(model.max_context - 4, 100000);
  return client.Generate(
      prompt({max_tokens: most, ignore_eos: true, temperature: 0}),
      soon(300000));
}

const first = (call) => new Promise((resolve, reject) => {
  call.once('data', resolve);
  call.once('error', reject);
});

async function idle(client) {
  const end = Date.now() + PATIENCE;
  while ((await unary(client, 'GetLoad', {})).num_running_reqs !== 0) {
    assert(Date.now() < end, 'requests are still running');
  }
}

const checks = {
  async stream(client) {
    const {messages, code} = await read(client.Generate(
        prompt({max_tokens: 24, ignore_eos: true, temperature: 0}), soon()));
    assert.strictEqual(code, grpc.status.OK);
    const done = messages.pop().complete;
    const ids = messages.flatMap((m) => m.chunk.token_ids);
    const text = messages.map((m) => m.chunk.text).join('');
    assert.deepStrictEqual(done.output_ids, ids);
    assert.strictEqual(ids.length, 24);
    assert.strictEqual(done.text, text);
    assert.strictEqual(done.finish_reason, 'length');
  },

  async health(client, address) {
    const health = healthClient(address);
    const check = (service) => new Promise((resolve) => health.Check(
        {service}, soon(), (error, answer) =>
          resolve(error ? error.code : answer.status)));
    assert.strictEqual(await check(''), 'SERVING');
    assert.strictEqual(await check(SERVICE), 'SERVING');
    assert.strictEqual(await check('no.such'), grpc.status.NOT_FOUND);
    health.close();
  },

  async unknown_method(client) {
    const bytes = (x) => x;
    const code = await new Promise((resolve) => client.makeUnaryRequest(
        `/${SERVICE}/NoSuchMethod`, bytes, bytes, Buffer.alloc(0), soon(),
        (error) => resolve(error && error.code)));
    assert.strictEqual(code, grpc.status.UNIMPLEMENTED);
  },

  async errors(client) {
    const bytes = (x) => x;
    const bad = Buffer.from([0x1a, 0x01, 0xff]);
    const raw = await read(client.makeServerStreamRequest(
        `/${SERVICE}/Generate`, bytes, bytes, bad, soon()));
    assert.strictEqual(raw.code, grpc.status.INVALID_ARGUMENT);
    assert.match(raw.details, /text.*UTF-8/);
    const range = await read(client.Generate(prompt({top_p: 2}), soon()));
    assert.strictEqual(range.code, grpc.status.INVALID_ARGUMENT);
    assert.match(range.details, /top_p.*2/);
  },

  async cancel(client) {
    const {code} = await read(await endless(client), (m, c) => c.cancel());
    assert.strictEqual(code, grpc.status.CANCELLED);
    await idle(client);
  },

  async deadline(client) {
    const {code} = await read(client.Generate(
        prompt({max_tokens: 100, ignore_eos: true}), soon(1)));
    assert.strictEqual(code, grpc.status.DEADLINE_EXCEEDED);
    await idle(client);
  },

  async drain(client, address, pid) {
    const health = healthClient(address);
    const watch = health.Watch({service: SERVICE}, soon());
    watch.on('error', () => {});
    assert.strictEqual((await first(watch)).status, 'SERVING');
    const calls = await Promise.all(
        [...Array(16)].map(() => endless(client)));
    await Promise.all(calls.map(first));
    for (const call of calls) call.on('error', () => {});
    const told = first(watch);
    process.kill(pid, 'SIGTERM');
    assert.strictEqual((await told).status, 'NOT_SERVING');
    const late = await read(client.Generate(prompt({max_tokens: 1}), soon()));
    assert.strictEqual(late.code, grpc.status.UNAVAILABLE);
    assert.match(String(late.metadata.get('retry-after-ms')[0]), /^\d+$/);
    for (const call of calls) call.cancel();
    watch.cancel();
    health.close();
  },
};

function healthClient(address) {
  const known = grpc.loadPackageDefinition(loader.loadSync(
      path.join(PROTO, 'grpc/health/v1/health.proto'),
      {...LOAD, enums: String}));
  return new known.grpc.health.v1.Health(address, credentials());
}

async function main() {
  const [address, pid] = [process.argv[2], Number(process.argv[3])];
  await reflect(address, 'v1alpha');
  const client = await reflect(address, 'v1');
  console.log('ok node reflection');
  for (const [name, check] of Object.entries(checks)) {
    await check(client, address, pid);
    console.log(`ok node ${name}`);
  }
  client.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
