"""Checks a running `weft serve` with the gRPC library of Python, which shares no
message code with the server: types come from server reflection alone.

usage: check.py ADDRESS PID    (PID of the server, which is told to drain)
"""
import os
import signal
import sys
import time

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)

SERVICE = "weft.v1.Generation"
PATIENCE = 20.0


class Node:
    """The server, as reflection describes it."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.enable_retries", 0)])
        grpc.channel_ready_future(self.channel).result(timeout=PATIENCE)
        pool = descriptor_pool.DescriptorPool(
            ProtoReflectionDescriptorDatabase(self.channel))
        service = pool.FindServiceByName(SERVICE)
        self.types = {
            m.name: (message_factory.GetMessageClass(m.input_type),
                     message_factory.GetMessageClass(m.output_type))
            for m in service.methods}

    def call(self, method, data=None, **fields):
        kind, answer = self.types[method]
        data = kind(**fields).SerializeToString() if data is None else data
        return self.channel.unary_unary(
            f"/{SERVICE}/{method}", None, answer.FromString)(
                data, timeout=PATIENCE)

    def generate(self, ids=(1, 2, 3), timeout=PATIENCE, data=None, **sampling):
        kind, answer = self.types["Generate"]
        request = kind(stream=True)
        request.tokenized.input_ids.extend(ids)
        for name, value in sampling.items():
            setattr(request.sampling_params, name, value)
        return self.channel.unary_stream(
            f"/{SERVICE}/Generate", None, answer.FromString)(
                request.SerializeToString() if data is None else data,
                timeout=timeout)

    def endless(self):
        """A stream as long as the context allows."""
        context = self.call("GetModel").max_context
        return self.generate(max_tokens=min(context - 4, 100000),
                             ignore_eos=True, temperature=0.0, timeout=300)

    def health(self):
        return health_pb2_grpc.HealthStub(self.channel)


def status_of(call):
    """Reads a call to its end: (status, details, trailing metadata)."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        call = error
    return call.code(), call.details() or "", dict(call.trailing_metadata())


def until(what, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE:g} s"
        time.sleep(0.02)


def reflection(node):
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    for version in ("v1", "v1alpha"):
        answers = node.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/"
            "ServerReflectionInfo", None,
            reflection_pb2.ServerReflectionResponse.FromString)(
                iter([request.SerializeToString()]), timeout=PATIENCE)
        names = {s.name for a in answers
                 for s in a.list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health"} <= names, names
    sampling = node.types["Generate"][0]().sampling_params
    assert not sampling.HasField("temperature")
    sampling.temperature = 0.0
    assert sampling.HasField("temperature")


def stream(node):
    ids, text, last = [], "", None
    for answer in node.generate(max_tokens=24, temperature=0.0,
                                ignore_eos=True, logprobs=2):
        assert last is None, "a message after complete"
        if answer.WhichOneof("response") == "complete":
            last = answer.complete
            continue
        ids += answer.chunk.token_ids
        text += answer.chunk.text
        assert len(answer.chunk.output_logprobs.token_logprobs) == len(
            answer.chunk.token_ids)
    assert last is not None and list(last.output_ids) == ids, (ids, last)
    assert len(ids) == 24 and last.text == text and last.prompt_tokens == 3
    assert last.finish_reason == "length", last.finish_reason


def health(node):
    check = node.health().Check
    serving = health_pb2.HealthCheckResponse.SERVING
    for name in ("", SERVICE):
        answer = check(health_pb2.HealthCheckRequest(service=name),
                       timeout=PATIENCE)
        assert answer.status == serving
    try:
        check(health_pb2.HealthCheckRequest(service="no.such"),
              timeout=PATIENCE)
        raise AssertionError("health of an unknown service")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND, error


def unknown_method(node):
    try:
        node.channel.unary_unary(f"/{SERVICE}/NoSuchMethod")(
            b"", timeout=PATIENCE)
        raise AssertionError("an unknown method was answered")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error


def errors(node):
    code, details, _ = status_of(node.generate(data=b"\x1a\x01\xff"))
    assert code == grpc.StatusCode.INVALID_ARGUMENT, code
    assert "text" in details and "UTF-8" in details, details
    code, details, _ = status_of(node.generate(top_p=2.0))
    assert code == grpc.StatusCode.INVALID_ARGUMENT, code
    assert "top_p" in details and "2" in details, details


def cancel(node):
    call = node.endless()
    next(iter(call))
    call.cancel()
    assert status_of(call)[0] == grpc.StatusCode.CANCELLED
    until("idle after a cancel",
          lambda: node.call("GetLoad").num_running_reqs == 0)


def deadline(node):
    calls = [node.generate(max_tokens=100, ignore_eos=True, timeout=0.001)
             for _ in range(4)]
    for call in calls:
        code = status_of(call)[0]
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED, code
    until("idle after deadlines",
          lambda: node.call("GetLoad").num_running_reqs == 0)


def drain(node, pid):
    watch = iter(node.health().Watch(
        health_pb2.HealthCheckRequest(service=SERVICE), timeout=PATIENCE))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    calls = [node.endless() for _ in range(16)]
    for call in calls:
        next(iter(call))
    os.kill(pid, signal.SIGTERM)
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    code, details, trailing = status_of(node.generate(max_tokens=1))
    assert code == grpc.StatusCode.UNAVAILABLE, (code, details)
    assert trailing.get("retry-after-ms", "").isdigit(), trailing
    for call in calls:
        call.cancel()


def main():
    address, pid = sys.argv[1], int(sys.argv[2])
    node = Node(address)
    for check in (reflection, stream, health, unknown_method, errors, cancel,
                  deadline):
        check(node)
        print(f"ok python {check.__name__}", flush=True)
    drain(node, pid)
    print("ok python drain", flush=True)
    # What is left is the library's: with its server gone it sometimes does not
    # come to an end by itself.
    os._exit(0)


if __name__ == "__main__":
    main()
