# Eight clients, each asking one thing after another over a connection of its
# own; every answer is compared with what one process said. Sourced by prove.
# shellcheck shell=bash disable=SC2154

clients=8
tokens=120

# What one process says, before there is any cluster.
ask_one_process() {
    "$WEFT" serve --model "$MODEL" --listen 127.0.0.1:0 --http off \
        >"$WORK/serve.out" 2>"$WORK/serve.err" &
    local pid=$! at i
    eventually 60 grep -q '^ready ' "$WORK/serve.out"
    at=$(sed -n 's/^ready grpc=\([^ ]*\).*/\1/p' "$WORK/serve.out")
    for i in $(seq $clients); do
        "$WEFT" generate --addr "$at" --max-tokens $tokens --seed "$i" \
            "$prompt" >"$WORK/want-$i" 2>/dev/null
    done
    kill -TERM $pid
    wait $pid || fail "one process: $(tail -n 1 "$WORK/serve.err")"
    [ "$(cat "$WORK"/want-* | sort -u | wc -l)" -gt 2 ] ||
        fail 'seeds make no difference: the comparison would tell nothing'
    ok
}

client() { # NUMBER: asks until it is told to stop
    while [ ! -e "$load/stop" ]; do
        if ! weft_client generate --max-tokens $tokens --seed "$1" "$prompt" \
            >"$load/$1.out" 2>"$load/$1.err"; then
            echo "client $1: $(tail -n 1 "$load/$1.err")" >>"$load/failed"
        elif ! cmp -s "$load/$1.out" "$WORK/want-$1"; then
            cp "$load/$1.out" "$load/$1.other"
            echo "client $1: other bytes" >>"$load/failed"
        fi
        echo >>"$load/$1.answers"
    done
}
load_start() { # NAME
    load=$WORK/load-$1
    rm -rf "$load" && mkdir "$load"
    local i
    noted=()
    for i in $(seq $clients); do
        noted[i]=0
        : >"$load/$i.answers"
        client "$i" &
        echo $! >>"$load/pids"
    done
    eventually 60 have_more 1
}
answers() { wc -l <"$load/$1.answers"; } # CLIENT
have_more() { # COUNT: each client has so many more answers than were noted
    local i
    for i in $(seq $clients); do
        [ "$(answers "$i")" -ge $((${noted[i]} + $1)) ] || return 1
    done
}
load_is_well() { # WHAT
    [ ! -e "$load/failed" ] ||
        fail "$1: $(sort "$load/failed" | uniq -c | head -n 5)"
}
# Each client gets a whole answer that began after this: the next one that
# comes is of before.
one_answer_more() {
    local i
    for i in $(seq $clients); do noted[i]=$(answers "$i"); done
    eventually 120 have_more 2
}
load_stop() { # WHAT: has been survived
    local pid
    one_answer_more
    touch "$load/stop"
    while read -r pid; do wait "$pid" || true; done <"$load/pids"
    load_is_well "$1"
    say "  $(cat "$load"/*.answers | wc -l) answers, 0 failed, the same bytes: $1"
    ok
}
