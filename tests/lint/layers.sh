#!/bin/sh
# Fail on an #include that goes against the layers: node/base under everything,
# kernels and proto on it, shard on kernels, router on node/base alone; only the
# rest of node and the tests know all. Third-party headers stay where their
# library is used, and policy has no clock, thread or socket.
# usage: tests/lint/layers.sh
cd "$(dirname "$0")/../.."
. tests/lint/lib.sh

sources | xargs -r grep -nE '^[ 	]*#[ 	]*include' /dev/null | awk '
BEGIN {
    ok["base"] = " base "
    ok["kernels"] = " base kernels "
    ok["proto"] = " base proto "
    ok["shard"] = " base kernels shard "
    ok["router"] = " base router "
    ok["node"] = " base kernels proto shard router node "
    ok["tests"] = " base kernels proto shard router node tests "
}

function layer(path) {
    if (path ~ /^node\/base\//) return "base"
    return substr(path, 1, index(path, "/") - 1)
}

function bad(why) {
    print from ":" line ": " why
}

# Where the headers of a library may be included; "" if it is not bound.
function homes(name) {
    if (name ~ /^grpc\// || name ~ /protobuf-c/ || name ~ /\.pb-c\.h$/ ||
        name ~ /^etcd/)
        return "^(node/rpc|node/cluster|proto|tests)/"
    if (name == "jansson.h") return "^(shard|router|node/[^/]+|tests)/"
    if (name ~ /^openssl\//) return "^(shard/link|tests)/"
    if (name == "pcre2.h") return "^(router|tests)/"
    if (name == "microhttpd.h") return "^(node/rpc/http|tests)/"
    if (name == "check.h") return "^tests/"
    return ""
}

function is_policy(path) {
    return path ~ /^(shard\/sched|shard\/kv|router\/place|node\/cluster\/(placement|roster|controller|agent))[\/.]/
}

function is_impure(name) {
    return name ~ /^(time|pthread|threads|sched|poll|unistd)\.h$/ ||
           name ~ /^sys\/(socket|time|epoll|eventfd)\.h$/ ||
           name ~ /^node\/base\/(clock|threads|ring|futex|log)\.h$/
}

{
    from = $0
    sub(/:.*/, "", from)
    rest = substr($0, length(from) + 2)
    line = rest
    sub(/:.*/, "", line)
    quoted = rest ~ /include[ \t]*"/
    name = rest
    sub(/^[^"<]*["<]/, "", name)
    sub(/[">].*/, "", name)

    where = homes(name)
    if (from ~ /^node\/base\// && name == "jansson.h")
        bad("node/base may not include " name)
    else if (where != "" && from !~ where)
        bad(name " may be included only in " where)
    if (is_policy(from) && is_impure(name))
        bad("policy may not include " name)
    if (!quoted) next
    to = layer(name)
    if (name ~ /\.pb-c\.h$/) next
    if (!(to in ok)) bad("\"" name "\" is not a path from the root")
    else if (index(ok[layer(from)], " " to " ") == 0)
        bad(layer(from) " may not include " name)
}' | none
