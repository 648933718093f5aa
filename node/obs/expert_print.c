#include "node/obs/expert_print.h"

typedef struct line {
    const char *name, *type, *help;
    double value;
} line;

static weft_status print_line(const line *l, weft_buf *out, weft_err *err)
{
    return weft_buf_printf(out, err, "# HELP %s %s\n# TYPE %s %s\n%s %.15g\n",
                           l->name, l->help, l->name, l->type, l->name,
                           l->value);
}

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

weft_status weft_expert_print(const weft_expert_server_stats *server,
                              const weft_expert_store_stats *store,
                              weft_buf *out, weft_err *err)
{
    const line lines[] = {
        {"weft_expert_questions_total", "counter",
         "Questions of layer shards that were answered or refused.",
         (double)server->questions},
        {"weft_expert_rejected_total", "counter",
         "Questions for an epoch or an expert that is not held here.",
         (double)server->rejected},
        {"weft_expert_busy_seconds_total", "counter",
         "Time in which questions were computed.", seconds(server->busy_ns)},
        {"weft_expert_idle_seconds_total", "counter",
         "Time in which there was no question.", seconds(server->idle_ns)},
        {"weft_expert_busy_ratio", "gauge",
         "Share of recent time, which fades within half a minute or so, in "
         "which questions were computed.",
         server->busy_share},
        {"weft_expert_links", "gauge", "Layer shards that are connected.",
         (double)server->n_links},
        {"weft_experts_held", "gauge", "(Layer, expert) pairs in memory.",
         (double)store->n_experts},
        {"weft_expert_bytes", "gauge", "Memory of these.",
         (double)store->used_bytes},
        {"weft_expert_loaded_bytes_total", "counter",
         "Bytes of experts that were read from files.",
         (double)store->loaded_bytes},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        WEFT_TRY(print_line(&lines[i], out, err));
    return weft_buf_printf(
        out, err,
        "# HELP weft_expert_wait_seconds From the arrival of a question to its "
        "turn.\n# TYPE weft_expert_wait_seconds summary\n"
        "weft_expert_wait_seconds_sum %.9g\n"
        "weft_expert_wait_seconds_count %llu\n",
        seconds(server->wait_ns), (unsigned long long)server->n_waits);
}
