/* options.h - the command line: commands, flags, their defaults and ranges.
 *
 * Everything is a row of two tables (flags.c): which commands there are, and
 * for each flag its name, the commands it belongs to, what values it takes,
 * its default, and its help text. Parsing, the environment and `weft help`
 * follow from the rows.
 *
 * Rules. Flags are long: `--flag value` or `--flag=value`; a value that starts
 * with `--` needs the second form. Switches take no value (`--json=false` puts
 * one back). A flag may be given once, but for `--stop`. `--` ends the flags.
 * Sizes take K, M, G or T (powers of 1024). A flag that is not on the command
 * line is looked up in the environment as WEFT_FLAG_NAME; the command line
 * wins, and an environment value is held to the same rules. Words that are no
 * flags are refused where the command takes none.
 *
 * Errors: INVALID_ARGUMENT (unknown, missing, malformed, out of range, given
 * twice) and UNIMPLEMENTED (known, and not built); the text names the flag or
 * command. Both are exit code 2.
 *
 * Threads: none; parsing happens once, before any is started.
 */
#ifndef WEFT_NODE_APP_OPTIONS_H
#define WEFT_NODE_APP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "node/base/address.h"
#include "node/base/err.h"
#include "node/base/log.h"
#include "shard/link/hello.h"
#include "shard/load/weights.h"

enum { WEFT_STOPS_MAX = 16 }; /* --stop */

typedef enum weft_command {
    WEFT_COMMAND_SERVE,
    WEFT_COMMAND_GENERATE,
    WEFT_COMMAND_EVAL,
    WEFT_COMMAND_CHECK,
    WEFT_COMMAND_STATUS,
    WEFT_COMMAND_ROUTER,
    WEFT_COMMAND_SHARD,
    WEFT_COMMAND_PLAN,
    WEFT_COMMAND_BENCH,
    WEFT_COMMAND_HELP,
    WEFT_COMMAND_VERSION,
    WEFT_COMMANDS,
} weft_command;

typedef enum weft_flag {
    WEFT_FLAG_MODEL,
    WEFT_FLAG_MODEL_NAME,
    WEFT_FLAG_LISTEN,
    WEFT_FLAG_HTTP,
    WEFT_FLAG_TEXT,
    WEFT_FLAG_IDS_FILE,
    WEFT_FLAG_LOGITS,
    WEFT_FLAG_DECODE_FROM,
    WEFT_FLAG_KV_BYTES,
    WEFT_FLAG_PAGE_TOKENS,
    WEFT_FLAG_CHUNK_TOKENS,
    WEFT_FLAG_MAX_SEQS,
    WEFT_FLAG_MAX_QUEUE,
    WEFT_FLAG_MAX_CONTEXT,
    WEFT_FLAG_THREADS,
    WEFT_FLAG_PROFILE,
    WEFT_FLAG_CPU_PATH,
    WEFT_FLAG_BACKEND,
    WEFT_FLAG_DRAIN_SECONDS,
    WEFT_FLAG_GENERATION_DEFAULTS,
    WEFT_FLAG_STAGES,
    WEFT_FLAG_EXPERT_SHARDS,
    WEFT_FLAG_TENSOR_PARALLEL,
    WEFT_FLAG_ADDR,
    WEFT_FLAG_MAX_TOKENS,
    WEFT_FLAG_TEMPERATURE,
    WEFT_FLAG_TOP_P,
    WEFT_FLAG_TOP_K,
    WEFT_FLAG_MIN_P,
    WEFT_FLAG_SEED,
    WEFT_FLAG_STOP,
    WEFT_FLAG_IDS,
    WEFT_FLAG_JSON,
    WEFT_FLAG_LOG_LEVEL,
    WEFT_FLAG_CLUSTER,
    WEFT_FLAG_ETCD,
    WEFT_FLAG_MEMBERS,
    WEFT_FLAG_ROLE,
    WEFT_FLAG_ID,
    WEFT_FLAG_LINK_LISTEN, /* --listen of a shard */
    WEFT_FLAG_LINK_HTTP,   /* --http of a shard */
    WEFT_FLAG_ADVERTISE,
    WEFT_FLAG_GROUP,
    WEFT_FLAG_STAGE,
    WEFT_FLAG_EXPERT_BYTES,
    WEFT_FLAG_EXPERT_REPLICAS,
    WEFT_FLAG_LINK_CERT,
    WEFT_FLAG_LINK_KEY,
    WEFT_FLAG_LINK_CA,
    WEFT_FLAG_LINK_ROWS,
    WEFT_FLAG_ETCD_CA,
    WEFT_FLAG_ETCD_CERT,
    WEFT_FLAG_ETCD_KEY,
    WEFT_FLAG_ETCD_USER_FILE,
    WEFT_FLAG_TLS_CERT,
    WEFT_FLAG_TLS_KEY,
    WEFT_FLAG_TLS_CLIENT_CA,
    WEFT_FLAG_API_KEYS,
    WEFT_FLAG_TLS_CA,
    WEFT_FLAG_API_KEY_FILE,
    WEFT_FLAG_CONTEXT,
    WEFT_FLAG_SEQUENCES,
    WEFT_FLAG_WEIGHTS,
    WEFT_FLAG_DEVICE_BYTES,
    WEFT_FLAG_DEVICE_BANDWIDTH,
    WEFT_FLAG_BF16_TFLOPS,
    WEFT_FLAG_FP8_TFLOPS,
    WEFT_FLAGS,
} weft_flag;

/* HOST:PORT, or [IPV6]:PORT. */
typedef struct weft_flag_address {
    const char *text; /* as given; "off" when off */
    weft_address at;
    bool off;
} weft_flag_address;

/* One parsed command line. A field that the command has no flag for keeps its
 * default. Texts are borrowed from argv and the environment. */
typedef struct weft_options {
    weft_command command;
    bool given[WEFT_FLAGS]; /* set, here or in the environment */

    const char *model;      /* folder */
    const char *model_name; /* NULL: the folder's name */
    weft_flag_address listen, http;
    const char *text, *ids_file, *logits; /* eval; NULL: not given */
    int32_t decode_from;                  /* eval; -1: everything prefilled */

    int64_t kv_bytes; /* 0: free memory less the reserve */
    int32_t page_tokens, chunk_tokens, max_seqs, max_queue;
    int32_t max_context; /* 0: the model's */
    int32_t threads;     /* 0: as many as cores */
    const char *profile_name, *cpu_path, *backend, *generation_defaults;
    const char *log_level_name;
    int32_t drain_seconds, stages, expert_shards;
    int32_t tensor_parallel; /* ranks of each stage */

    /* What follows from the names above. */
    weft_profile profile;
    weft_log_level log_level;
    bool neutral_defaults; /* --generation-defaults neutral */

    /* Of a cluster's processes. */
    const char *cluster;        /* its name */
    const char *etcd, *members; /* one of them; the other is NULL */
    const char *role_name;
    const char *id;              /* NULL: not given */
    weft_flag_address advertise; /* text NULL: as listen */
    int32_t group, stage, expert_replicas;
    int64_t expert_bytes;                       /* 0: as much as there is */
    const char *link_cert, *link_key, *link_ca; /* all or none */
    const char *link_rows;                      /* "auto", "tcp" */
    bool link_rows_near;                        /* follows from it */
    const char *etcd_ca, *etcd_cert, *etcd_key; /* files, or NULL */
    const char *etcd_user_file;
    weft_role role; /* follows from role_name; of router: ROUTER */

    /* Of the public gRPC port: files, or NULL. */
    const char *tls_cert, *tls_key, *tls_client_ca, *api_keys;
    const char *tls_ca, *api_key_file; /* of its clients */

    /* Of plan. */
    int32_t context, sequences;
    const char *weights; /* "fp8", "bf16" */
    int64_t device_bytes;
    double device_bandwidth, bf16_tflops, fp8_tflops;

    weft_flag_address addr;
    int32_t max_tokens, top_k; /* this and the next: only if given */
    double temperature, top_p, min_p;
    uint64_t seed;
    const char *stops[WEFT_STOPS_MAX];
    int32_t n_stops;
    bool ids, json;

    char **words; /* what is no flag: the prompt, or the subject of help */
    int32_t n_words;
} weft_options;

/* As getenv; `arg` is for tests. */
typedef const char *(*weft_env_fn)(void *arg, const char *name);

/* argv[0] is the program. Words are gathered at argv[1] and on, in place.
 * *options_out is set only on WEFT_OK. */
WEFT_MUST_CHECK weft_status weft_options_parse(int argc, char **argv,
                                               weft_env_fn env, void *env_arg,
                                               weft_options *options_out,
                                               weft_err *err);

/* Whether the flag was set on the command line or in the environment. */
bool weft_options_given(const weft_options *options, weft_flag flag);

/* `weft help` and `weft help COMMAND`. INVALID_ARGUMENT: no such command;
 * UNIMPLEMENTED: it is not built. */
void weft_help_print(FILE *out);
WEFT_MUST_CHECK weft_status weft_help_print_command(FILE *out, const char *name,
                                                    weft_err *err);

/* `weft version`: version, commit, CPU paths of this machine, backends. */
void weft_version_print(FILE *out);

/* "0.1.0" and the commit it was configured from ("unknown" outside a clone). */
const char *weft_version_text(void);
const char *weft_version_commit(void);

#endif
