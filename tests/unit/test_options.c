/* The command line against tables: what is refused and named, and what comes
 * out of what is taken. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/app/exit.h"
#include "node/app/options.h"

enum { ARGS_MAX = 40, LINE_BYTES = 512 };

/* "WEFT_PAGE_TOKENS=4;WEFT_MODEL=x": what the environment holds. */
static const char *lookup(void *arg, const char *name)
{
    static char value[LINE_BYTES];
    const size_t n = strlen(name);
    for (const char *at = arg; at != NULL && *at != '\0';) {
        const size_t item = strcspn(at, ";");
        if (item > n && at[n] == '=' && memcmp(at, name, n) == 0) {
            memcpy(value, at + n + 1, item - n - 1);
            value[item - n - 1] = '\0';
            return value;
        }
        at = at[item] == ';' ? at + item + 1 : NULL;
    }
    return NULL;
}

/* Parse "serve|--model|m": a bar stands between the arguments, so that one may
 * be empty or hold blanks. */
static weft_status parse_in(const char *line, const char *env, weft_options *o,
                            weft_err *err)
{
    static char copy[LINE_BYTES], vars[LINE_BYTES];
    static char program[] = "weft";
    static char *argv[ARGS_MAX];
    argv[0] = program;
    int argc = 1;
    ck_assert(strlen(line) < sizeof copy && strlen(env) < sizeof vars);
    (void)snprintf(copy, sizeof copy, "%s", line);
    (void)snprintf(vars, sizeof vars, "%s", env);
    for (char *at = copy; line[0] != '\0' && at != NULL;) {
        char *const bar = strchr(at, '|');
        if (bar != NULL) *bar = '\0';
        ck_assert_int_lt(argc, ARGS_MAX);
        argv[argc++] = at;
        at = bar != NULL ? bar + 1 : NULL;
    }
    return weft_options_parse(argc, argv, lookup, vars, o, err);
}

#define ROUTER      "router|--cluster|c|--model|m"
#define SHARD(role) "shard|--cluster|c|--model|m|--etcd|e|--role|" role

static const struct refusal {
    const char *line, *env;
    weft_status status;
    const char *names; /* what the text must hold */
} refusals[] = {
    {"", "", WEFT_INVALID_ARGUMENT, "command"},
    {"nonsense", "", WEFT_INVALID_ARGUMENT, "nonsense"},
    {"plan", "", WEFT_INVALID_ARGUMENT, "--model"},
    {"plan|--model|m|--sequences|0", "", WEFT_INVALID_ARGUMENT, "--sequences"},
    {"plan|--model|m|--weights|fp4", "", WEFT_INVALID_ARGUMENT, "fp8"},
    {"bench", "", WEFT_UNIMPLEMENTED, "bench"},
    {"serve", "", WEFT_INVALID_ARGUMENT, "--model"},
    {"serve|--model", "", WEFT_INVALID_ARGUMENT, "--model"},
    {"serve|--model|--listen|127.0.0.1:0", "", WEFT_INVALID_ARGUMENT,
     "--model needs"},
    {"serve|--model=", "", WEFT_INVALID_ARGUMENT, "--model"},
    {"serve|--model|m|stray", "", WEFT_INVALID_ARGUMENT, "stray"},
    {"serve|--model|m|--|-x", "", WEFT_INVALID_ARGUMENT, "-x"},
    {"serve|-m|m", "", WEFT_INVALID_ARGUMENT, "-m"},
    {"serve|--no-such-flag|1", "", WEFT_INVALID_ARGUMENT, "--no-such-flag"},
    {"serve|--no-such-flag=1", "", WEFT_INVALID_ARGUMENT, "--no-such-flag"},
    {"serve|--mod|m", "", WEFT_INVALID_ARGUMENT, "--mod"},
    {"serve|--model|m|--model|n", "", WEFT_INVALID_ARGUMENT, "--model"},
    {"eval|--listen|127.0.0.1:0", "", WEFT_INVALID_ARGUMENT, "--listen"},
    {"eval|--model|m", "", WEFT_INVALID_ARGUMENT, "--ids"},
    {"eval|--model|m|--ids|a|--text|b", "", WEFT_INVALID_ARGUMENT, "--ids"},
    {"eval|--model|m|--ids|a|--decode-from|-1", "", WEFT_INVALID_ARGUMENT,
     "--decode-from"},
    {"check", "", WEFT_INVALID_ARGUMENT, "--model"},
    {"check|--model|m|--json=yes", "", WEFT_INVALID_ARGUMENT, "--json"},
    {"generate|--temperature|warm|x", "", WEFT_INVALID_ARGUMENT,
     "--temperature"},
    {"generate|--temperature|nan|x", "", WEFT_INVALID_ARGUMENT,
     "--temperature"},
    {"generate|--max-tokens|-1|x", "", WEFT_INVALID_ARGUMENT, "--max-tokens"},
    {"generate|--seed|18446744073709551616|x", "", WEFT_INVALID_ARGUMENT,
     "--seed"},
    {"generate|--addr|127.0.0.1:0|x", "", WEFT_INVALID_ARGUMENT, "--addr"},
    {"generate|--stop=|x", "", WEFT_INVALID_ARGUMENT, "--stop"},
    {"version|stray", "", WEFT_INVALID_ARGUMENT, "stray"},
    {"help|serve|check", "", WEFT_INVALID_ARGUMENT, "help"},
    {"serve|--model|m", "WEFT_PAGE_TOKENS=abc", WEFT_INVALID_ARGUMENT,
     "WEFT_PAGE_TOKENS"},
    {"serve|--model|m", "WEFT_MODEL_NAME=", WEFT_INVALID_ARGUMENT,
     "WEFT_MODEL_NAME"},
    {"serve|--model|m", "WEFT_STAGES=0", WEFT_INVALID_ARGUMENT, "--stages"},
    {"router", "", WEFT_INVALID_ARGUMENT, "--model"},
    {"router|--model|m|--etcd|e", "", WEFT_INVALID_ARGUMENT, "--cluster"},
    {ROUTER, "", WEFT_INVALID_ARGUMENT, "--etcd"},
    {ROUTER "|--etcd|e|--members|f", "", WEFT_INVALID_ARGUMENT, "--members"},
    {ROUTER "|--etcd|e|--stage|0", "", WEFT_INVALID_ARGUMENT, "--stage"},
    {ROUTER "|--etcd|e|--expert-replicas|0", "", WEFT_INVALID_ARGUMENT,
     "--expert-replicas"},
    {ROUTER "|--etcd|e|--expert-replicas|5", "", WEFT_INVALID_ARGUMENT,
     "from 1 to 4"},
    {ROUTER "|--etcd|e|--listen|0.0.0.0:1", "", WEFT_INVALID_ARGUMENT,
     "--advertise"},
    {ROUTER "|--etcd|e|--id|a/b", "", WEFT_INVALID_ARGUMENT, "--id"},
    {"router|--model|m|--etcd|e|--cluster|a b", "", WEFT_INVALID_ARGUMENT,
     "--cluster"},
    {"shard|--cluster|c|--model|m|--etcd|e", "", WEFT_INVALID_ARGUMENT,
     "--role"},
    {SHARD("router"), "", WEFT_INVALID_ARGUMENT, "--role"},
    {SHARD("layers") "|--stage|1", "", WEFT_INVALID_ARGUMENT, "--stage"},
    {SHARD("layers") "|--stages|2|--stage|2", "", WEFT_INVALID_ARGUMENT,
     "0 to 1"},
    {SHARD("layers") "|--stages|65", "", WEFT_INVALID_ARGUMENT, "--stages"},
    {SHARD("layers") "|--expert-bytes|1G", "", WEFT_INVALID_ARGUMENT,
     "--expert-bytes"},
    {SHARD("layers") "|--expert-replicas|1", "", WEFT_INVALID_ARGUMENT,
     "--expert-replicas"},
    {SHARD("experts") "|--group|1", "", WEFT_INVALID_ARGUMENT, "--group"},
    {SHARD("experts") "|--stages|1", "", WEFT_INVALID_ARGUMENT, "--stages"},
    {SHARD("experts"), "WEFT_KV_BYTES=1G", WEFT_INVALID_ARGUMENT, "--kv-bytes"},
    {SHARD("experts") "|--tensor-parallel|2", "", WEFT_INVALID_ARGUMENT,
     "--tensor-parallel has no meaning with --role experts"},
    {SHARD("layers") "|--tensor-parallel|9", "", WEFT_INVALID_ARGUMENT,
     "from 1 to 8"},
    {SHARD("layers"), "WEFT_TENSOR_PARALLEL=0", WEFT_INVALID_ARGUMENT,
     "--tensor-parallel"},
    {ROUTER "|--etcd|e|--tensor-parallel|2", "", WEFT_INVALID_ARGUMENT,
     "--tensor-parallel"},
    {"serve|--model|m|--tensor-parallel|2|--stages|3", "", WEFT_UNIMPLEMENTED,
     "--tensor-parallel 2 with --stages 3"},
    {"eval|--model|m|--ids|a|--tensor-parallel|4|--expert-shards|2", "",
     WEFT_UNIMPLEMENTED, "--tensor-parallel 4 with --expert-shards 2"},
    {SHARD("experts") "|--page-tokens|64", "", WEFT_INVALID_ARGUMENT,
     "--page-tokens"},
    {SHARD("experts") "|--listen|[::]:0", "", WEFT_INVALID_ARGUMENT,
     "--advertise"},
    {SHARD("experts") "|--listen|0x0:0", "", WEFT_INVALID_ARGUMENT,
     "--advertise"},
    {SHARD("experts") "|--listen|00.0.0.0:0", "", WEFT_INVALID_ARGUMENT,
     "--advertise"},
    {SHARD("experts") "|--listen|[::ffff:0.0.0.0]:0", "", WEFT_INVALID_ARGUMENT,
     "--advertise"},
    {SHARD("experts") "|--advertise|0.0.0.0:1", "", WEFT_INVALID_ARGUMENT,
     "--advertise 0.0.0.0:1"},
    {SHARD("experts") "|--link-cert|a|--link-key|b", "", WEFT_INVALID_ARGUMENT,
     "--link-ca"},
    {SHARD("experts") "|--etcd-cert|a", "", WEFT_INVALID_ARGUMENT,
     "--etcd-key"},
    {ROUTER "|--members|f|--etcd-ca|a", "", WEFT_INVALID_ARGUMENT, "--etcd-ca"},
    {SHARD("experts") "|--link-ca|a", "", WEFT_INVALID_ARGUMENT, "--link-key"},
    {SHARD("experts") "|--id|"
                      "01234567890123456789012345678901234567890123456789012345"
                      "67890123",
     "", WEFT_INVALID_ARGUMENT, "--id"},
};

START_TEST(refused_by_name)
{
    const struct refusal *const r = &refusals[_i];
    weft_options o = {.n_words = -7};
    weft_err err = {0};
    ck_assert_msg(parse_in(r->line, r->env, &o, &err) == r->status,
                  "\"%s\": %s, %s", r->line, weft_status_name(err.status),
                  err.text);
    ck_assert_msg(strstr(err.text, r->names) != NULL,
                  "\"%s\": the text must name %s: %s", r->line, r->names,
                  err.text);
    ck_assert_ptr_null(strchr(err.text, '\n'));
    ck_assert_int_eq(o.n_words, -7); /* a failure leaves the output alone */
}
END_TEST

/* A flag of serve, and values that it does not take. */
static const struct bad {
    const char *flag, *values;
    weft_status status;
} bads[] = {
    {"kv-bytes",
     "12Q|-5|1.5.2G||G|99999999999999999999|1 G|0x10|18446744073709551615G|0|"
     "9223372036854775808",
     WEFT_INVALID_ARGUMENT},
    {"page-tokens", "0|abc|-1|4.5|99999999999||65537| 4|+4",
     WEFT_INVALID_ARGUMENT},
    {"chunk-tokens", "0|x|-3", WEFT_INVALID_ARGUMENT},
    {"threads", "-1|many|0|1025", WEFT_INVALID_ARGUMENT},
    {"max-seqs", "0|-1|1e3", WEFT_INVALID_ARGUMENT},
    {"max-queue", "-1|x", WEFT_INVALID_ARGUMENT},
    {"max-context", "-1|all|0", WEFT_INVALID_ARGUMENT},
    {"profile", "fp7||bf16,exact|bf|BF16", WEFT_INVALID_ARGUMENT},
    {"cpu-path", "sse9|", WEFT_INVALID_ARGUMENT},
    {"cpu-path", "amx", WEFT_UNIMPLEMENTED},
    {"backend", "abacus", WEFT_INVALID_ARGUMENT},
    {"drain-seconds", "-1|soon|86401", WEFT_INVALID_ARGUMENT},
    {"generation-defaults", "mine", WEFT_INVALID_ARGUMENT},
    {"stages", "0|-1|65", WEFT_INVALID_ARGUMENT},
    {"expert-shards", "0|x|65", WEFT_INVALID_ARGUMENT},
    {"tensor-parallel", "0|-1|9|two|", WEFT_INVALID_ARGUMENT},
    {"listen",
     "nonsense|127.0.0.1:99999|127.0.0.1:|:|127.0.0.1:x||:80|::1:80|[]:80|"
     "127.0.0.1:-1|off|127.0.0.1:65536|h/x:1",
     WEFT_INVALID_ARGUMENT},
    {"http", "127.0.0.1|Off|", WEFT_INVALID_ARGUMENT},
    {"log-level", "loud", WEFT_INVALID_ARGUMENT},
};

START_TEST(bad_values_are_refused)
{
    const struct bad *const b = &bads[_i];
    for (const char *at = b->values; at != NULL;) {
        const size_t n = strcspn(at, "|");
        char line[LINE_BYTES];
        (void)snprintf(line, sizeof line, "serve|--model|m|--%s=%.*s", b->flag,
                       (int)n, at);
        weft_options o;
        weft_err err = {0};
        ck_assert_msg(parse_in(line, "", &o, &err) == b->status, "\"%s\": %s",
                      line, err.text);
        ck_assert_msg(strstr(err.text, b->flag) != NULL, "\"%s\": %s", line,
                      err.text);
        at = at[n] == '|' ? at + n + 1 : NULL;
    }
}
END_TEST

static weft_options parse(const char *line, const char *env)
{
    weft_options o = {0};
    weft_err err = {0};
    ck_assert_msg(parse_in(line, env, &o, &err) == WEFT_OK, "\"%s\": %s", line,
                  err.text);
    return o;
}

START_TEST(defaults)
{
    const weft_options o = parse("serve|--model|m", "");
    ck_assert_int_eq(o.command, WEFT_COMMAND_SERVE);
    ck_assert_str_eq(o.model, "m");
    ck_assert_ptr_null(o.model_name);
    ck_assert_str_eq(o.listen.at.host, "127.0.0.1");
    ck_assert_int_eq(o.listen.at.port, 7070);
    ck_assert_int_eq(o.http.at.port, 7080);
    ck_assert(!o.http.off);
    ck_assert_int_eq(o.kv_bytes, 0);
    ck_assert_int_eq(o.page_tokens, 64);
    ck_assert_int_eq(o.chunk_tokens, 512);
    ck_assert_int_eq(o.max_seqs, 64);
    ck_assert_int_eq(o.max_queue, 1024);
    ck_assert_int_eq(o.max_context, 0);
    ck_assert_int_eq(o.threads, 0);
    ck_assert_int_eq(o.profile, WEFT_PROFILE_BF16);
    ck_assert_str_eq(o.cpu_path, "auto");
    ck_assert_str_eq(o.backend, "auto");
    ck_assert_int_eq(o.drain_seconds, 30);
    ck_assert(!o.neutral_defaults);
    ck_assert_int_eq(o.stages, 1);
    ck_assert_int_eq(o.expert_shards, 1);
    ck_assert_int_eq(o.tensor_parallel, 1);
    ck_assert_int_eq(o.log_level, WEFT_LOG_INFO);
    ck_assert(weft_options_given(&o, WEFT_FLAG_MODEL));
    ck_assert(!weft_options_given(&o, WEFT_FLAG_THREADS));
    ck_assert_int_eq(parse("eval|--model|m|--ids|f", "").decode_from, -1);
    ck_assert_int_eq(parse("status", "").addr.at.port, 7070);
}
END_TEST

START_TEST(values_are_taken)
{
    const weft_options o =
        parse("serve|--model=a=b|--kv-bytes|3G|--http|off|--profile=exact|"
              "--listen|[::1]:0|--max-queue|0|--generation-defaults|neutral|"
              "--page-tokens|1|--log-level|error|--stages|1",
              "");
    ck_assert_str_eq(o.model, "a=b");
    ck_assert_int_eq(o.kv_bytes, INT64_C(3) << 30);
    ck_assert(o.http.off);
    ck_assert_str_eq(o.http.text, "off");
    ck_assert_int_eq(o.profile, WEFT_EXACT);
    ck_assert_str_eq(o.listen.at.host, "::1");
    ck_assert_int_eq(o.listen.at.port, 0);
    ck_assert_int_eq(o.max_queue, 0);
    ck_assert(o.neutral_defaults);
    ck_assert_int_eq(o.page_tokens, 1);
    ck_assert_int_eq(o.log_level, WEFT_LOG_ERROR);
}
END_TEST

START_TEST(cluster_flags)
{
    weft_options o = parse(SHARD("experts"), "");
    ck_assert_int_eq(o.role, WEFT_ROLE_EXPERTS);
    ck_assert_str_eq(o.listen.text, "127.0.0.1:0"); /* not that of serve */
    ck_assert(o.http.off);
    ck_assert_ptr_null(o.id);
    ck_assert_ptr_null(o.advertise.text);
    ck_assert_int_eq(o.expert_bytes, 0);
    o = parse(SHARD("layers") "|--stages|3|--stage|2|--group|7|--listen|"
                              "0.0.0.0:5|--advertise|a.b:0|--http|[::1]:9|"
                              "--id|x.y_z-1|--profile|exact|--link-cert|c|"
                              "--link-key|k|--link-ca|a",
              "");
    ck_assert_int_eq(o.role, WEFT_ROLE_LAYERS);
    ck_assert_int_eq(o.stages, 3);
    ck_assert_int_eq(o.stage, 2);
    ck_assert_int_eq(o.group, 7);
    ck_assert_str_eq(o.advertise.at.host, "a.b");
    ck_assert_int_eq(o.http.at.port, 9);
    ck_assert_str_eq(o.id, "x.y_z-1");
    ck_assert_int_eq(o.profile, WEFT_EXACT);
    ck_assert_str_eq(o.link_ca, "a");
    o = parse(ROUTER "|--members|f|--expert-replicas|2", "");
    ck_assert_int_eq(o.role, WEFT_ROLE_ROUTER);
    ck_assert_int_eq(o.listen.at.port, 7070);
    ck_assert_int_eq(o.http.at.port, 7080);
    ck_assert_str_eq(o.members, "f");
    ck_assert_int_eq(o.expert_replicas, 2);
    ck_assert_int_eq(parse("serve|--model|m|--stages|64", "").stages, 64);
    o = parse(SHARD("layers") "|--stages|2|--tensor-parallel|8", "");
    ck_assert_int_eq(o.tensor_parallel, 8);
    o = parse("check|--model|m", "WEFT_TENSOR_PARALLEL=2");
    ck_assert_int_eq(o.tensor_parallel, 2);
    o = parse("eval|--model|m|--ids|f|--stages|2|--tensor-parallel|1", "");
    ck_assert_int_eq(o.tensor_parallel, 1);
}
END_TEST

START_TEST(words_and_repeats)
{
    const weft_options o =
        parse("generate|once|--seed|18446744073709551615|upon|--stop|a|--ids|"
              "--stop=--b|--temperature=-0.5|--|--time|-",
              "");
    ck_assert_int_eq(o.n_words, 4);
    ck_assert_str_eq(o.words[0], "once");
    ck_assert_str_eq(o.words[1], "upon");
    ck_assert_str_eq(o.words[2], "--time");
    ck_assert_str_eq(o.words[3], "-");
    ck_assert_int_eq(o.n_stops, 2);
    ck_assert_str_eq(o.stops[0], "a");
    ck_assert_str_eq(o.stops[1], "--b");
    ck_assert(o.ids && !o.json);
    ck_assert_uint_eq(o.seed, UINT64_MAX);
    ck_assert_double_eq(o.temperature, -0.5);
    ck_assert(weft_options_given(&o, WEFT_FLAG_TEMPERATURE));
    ck_assert(!weft_options_given(&o, WEFT_FLAG_TOP_P));
    ck_assert(!parse("generate|--json=false|x", "").json);
}
END_TEST

START_TEST(environment_comes_second)
{
    const char *const env = "WEFT_MODEL=e;WEFT_PAGE_TOKENS=8;WEFT_JSON=true;"
                            "WEFT_ACCEPT_VENV=x";
    const weft_options o = parse("serve|--page-tokens|16", env);
    ck_assert_int_eq(o.page_tokens, 16);
    ck_assert(weft_options_given(&o, WEFT_FLAG_MODEL));
    ck_assert(!o.json); /* serve has no such flag */
    ck_assert_int_eq(parse("serve", env).page_tokens, 8);
    ck_assert(parse("check", env).json);
    /* What the line sets is not looked up, so it cannot be malformed. */
    ck_assert_int_eq(
        parse("serve|--page-tokens|4", "WEFT_MODEL=e;WEFT_PAGE_TOKENS=x")
            .page_tokens,
        4);
}
END_TEST

START_TEST(a_long_value_stays_one_short_line)
{
    char line[LINE_BYTES];
    memset(line, 'x', sizeof line);
    memcpy(line, "serve|--model|m|--page-tokens=\n", 31);
    line[400] = '\0';
    weft_options o;
    weft_err err = {0};
    ck_assert_int_eq(parse_in(line, "", &o, &err), WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_null(strchr(err.text, '\n'));
    ck_assert_ptr_nonnull(strstr(err.text, "from 1 to 65536"));
}
END_TEST

static void append(char line[LINE_BYTES], const char *text)
{
    const size_t n = strlen(line);
    ck_assert_uint_lt(n + strlen(text), LINE_BYTES);
    (void)snprintf(line + n, LINE_BYTES - n, "%s", text);
}

START_TEST(too_many_stops)
{
    char line[LINE_BYTES] = "generate|x";
    for (int i = 0; i < WEFT_STOPS_MAX; i++) append(line, "|--stop=y");
    ck_assert_int_eq(parse(line, "").n_stops, WEFT_STOPS_MAX);
    append(line, "|--stop=y");
    weft_options o;
    weft_err err = {0};
    ck_assert_int_eq(parse_in(line, "", &o, &err), WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "--stop"));
}
END_TEST

/* Every flag that a command takes is in its help, with its variable. */
START_TEST(help_tells_flags)
{
    char *text = NULL;
    size_t n = 0;
    FILE *const out = open_memstream(&text, &n);
    weft_err err = {0};
    ck_assert_int_eq(weft_help_print_command(out, "serve", &err), WEFT_OK);
    ck_assert_int_eq(weft_help_print_command(out, "generate", &err), WEFT_OK);
    ck_assert_int_eq(weft_help_print_command(out, "shard", &err), WEFT_OK);
    ck_assert_int_eq(fclose(out), 0);
    static const char *const told[] = {
        "--model DIR",        "--listen HOST:PORT",
        "127.0.0.1:7070",     "--kv-bytes SIZE",
        "WEFT_KV_BYTES",      "bf16|exact",
        "--drain-seconds",    "--stop STR",
        "auto|cpu|cuda|simt", "not built: amx",
        "--expert-shards N",  "--advertise HOST:PORT",
        "layers|experts",     "--ids",
    };
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++)
        ck_assert_msg(strstr(text, told[i]) != NULL, "help lacks %s", told[i]);
    free(text);
    ck_assert_int_eq(weft_help_print_command(stdout, "bench", &err),
                     WEFT_UNIMPLEMENTED);
    ck_assert_int_eq(weft_help_print_command(stdout, "nonsense", &err),
                     WEFT_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "nonsense"));
}
END_TEST

static const struct exit_case {
    weft_status status;
    weft_doing doing;
    weft_exit code;
} exit_cases[] = {
    {WEFT_OK, WEFT_DOING_LOAD, WEFT_EXIT_DONE},
    {WEFT_INTERNAL, WEFT_DOING_LOAD, WEFT_EXIT_INTERNAL},
    {WEFT_INVALID_ARGUMENT, WEFT_DOING_USAGE, WEFT_EXIT_USAGE},
    {WEFT_UNIMPLEMENTED, WEFT_DOING_USAGE, WEFT_EXIT_USAGE},
    {WEFT_NOT_FOUND, WEFT_DOING_USAGE, WEFT_EXIT_RESOURCE},
    {WEFT_INVALID_ARGUMENT, WEFT_DOING_LOAD, WEFT_EXIT_REFUSED},
    {WEFT_NOT_FOUND, WEFT_DOING_LOAD, WEFT_EXIT_REFUSED},
    {WEFT_DATA_LOSS, WEFT_DOING_LOAD, WEFT_EXIT_REFUSED},
    {WEFT_UNIMPLEMENTED, WEFT_DOING_LOAD, WEFT_EXIT_REFUSED},
    {WEFT_RESOURCE_EXHAUSTED, WEFT_DOING_LOAD, WEFT_EXIT_RESOURCE},
    {WEFT_RESOURCE_EXHAUSTED, WEFT_DOING_START, WEFT_EXIT_RESOURCE},
    {WEFT_UNAVAILABLE, WEFT_DOING_START, WEFT_EXIT_RESOURCE},
    {WEFT_FAILED_PRECONDITION, WEFT_DOING_START, WEFT_EXIT_RESOURCE},
    {WEFT_INVALID_ARGUMENT, WEFT_DOING_START, WEFT_EXIT_USAGE},
    {WEFT_UNAVAILABLE, WEFT_DOING_REACH, WEFT_EXIT_UNREACHABLE},
    {WEFT_INVALID_ARGUMENT, WEFT_DOING_CALL, WEFT_EXIT_ANSWERED},
    {WEFT_UNAVAILABLE, WEFT_DOING_CALL, WEFT_EXIT_ANSWERED},
    {WEFT_INTERNAL, WEFT_DOING_CALL, WEFT_EXIT_ANSWERED},
};

START_TEST(exit_codes)
{
    const struct exit_case *const c = &exit_cases[_i];
    ck_assert_int_eq(weft_exit_of(c->status, c->doing), c->code);
}
END_TEST

#define COUNT(table) (int)(sizeof(table) / sizeof((table)[0]))

int main(void)
{
    Suite *const s = suite_create("options");
    TCase *const t = tcase_create("options");
    tcase_add_loop_test(t, refused_by_name, 0, COUNT(refusals));
    tcase_add_loop_test(t, bad_values_are_refused, 0, COUNT(bads));
    tcase_add_test(t, defaults);
    tcase_add_test(t, values_are_taken);
    tcase_add_test(t, cluster_flags);
    tcase_add_test(t, words_and_repeats);
    tcase_add_test(t, environment_comes_second);
    tcase_add_test(t, a_long_value_stays_one_short_line);
    tcase_add_test(t, too_many_stops);
    tcase_add_test(t, help_tells_flags);
    tcase_add_loop_test(t, exit_codes, 0, COUNT(exit_cases));
    suite_add_tcase(s, t);
    SRunner *const r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    const int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
