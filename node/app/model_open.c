#include "node/app/model_open.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/app/cgroup.h"

enum { PATH_BYTES = 4096 };

static weft_status check_folder(const char *dir, weft_err *err)
{
    struct stat info;
    if (stat(dir, &info) != 0)
        return WEFT_FAIL(err, WEFT_NOT_FOUND, "model folder %s: %s", dir,
                         strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "model folder %s: it is not a folder", dir);
    return WEFT_OK;
}

static weft_status path_of(const char *dir, const char *name,
                           char path[PATH_BYTES], weft_err *err)
{
    const int n = snprintf(path, PATH_BYTES, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_BYTES)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "model folder: its name is longer than %d bytes",
                         PATH_BYTES);
    return WEFT_OK;
}

/* tokenizer_config.json may name an end token that neither config has. */
static weft_status add_end_token(const char *dir, weft_opened *o, weft_err *err)
{
    char path[PATH_BYTES];
    int32_t id = -1;
    weft_model_config *const c = &o->config;
    WEFT_TRY(path_of(dir, "tokenizer_config.json", path, err));
    if (access(path, F_OK) != 0) return WEFT_OK;
    WEFT_TRY(weft_tokenizer_eos_read(o->tokenizer, path, &id, err));
    if (id < 0) return WEFT_OK;
    for (int32_t i = 0; i < c->n_stop_ids; i++)
        if (c->stop_ids[i] == id) return WEFT_OK;
    if (c->n_stop_ids == WEFT_STOP_IDS_MAX)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "%s: eos_token: more than %d end tokens in all", path,
                         WEFT_STOP_IDS_MAX);
    c->stop_ids[c->n_stop_ids++] = id;
    return WEFT_OK;
}

static weft_status open_tokenizer(const char *dir, weft_opened *o,
                                  weft_err *err)
{
    char path[PATH_BYTES];
    WEFT_TRY(path_of(dir, "tokenizer.json", path, err));
    if (access(path, F_OK) != 0) return WEFT_OK;
    WEFT_TRY(
        weft_tokenizer_read(path, o->config.vocab_size, &o->tokenizer, err));
    return add_end_token(dir, o, err);
}

weft_status weft_model_open(const char *dir, weft_profile profile,
                            weft_remark_fn remark, void *arg,
                            weft_opened *opened_out, weft_err *err)
{
    weft_opened o = {0};
    WEFT_TRY(check_folder(dir, err));
    WEFT_TRY(weft_model_config_read(dir, remark, arg, &o.config, err));
    weft_status st = weft_checkpoint_open(dir, &o.config, profile, remark, arg,
                                          &o.checkpoint, err);
    if (st == WEFT_OK) st = open_tokenizer(dir, &o, err);
    if (st != WEFT_OK) {
        weft_model_close(&o);
        return st;
    }
    *opened_out = o;
    return WEFT_OK;
}

weft_status weft_model_open_texts(const char *dir, weft_remark_fn remark,
                                  void *arg, weft_opened *opened_out,
                                  weft_err *err)
{
    weft_opened o = {0};
    WEFT_TRY(check_folder(dir, err));
    WEFT_TRY(weft_model_config_read(dir, remark, arg, &o.config, err));
    const weft_status st = open_tokenizer(dir, &o, err);
    if (st != WEFT_OK) {
        weft_model_close(&o);
        return st;
    }
    *opened_out = o;
    return WEFT_OK;
}

void weft_model_close(weft_opened *opened)
{
    weft_tokenizer_destroy(opened->tokenizer);
    weft_checkpoint_close(opened->checkpoint);
    opened->tokenizer = NULL;
    opened->checkpoint = NULL;
}

weft_part_of_model weft_model_whole(const weft_model_config *config)
{
    return (weft_part_of_model){.end_layer = config->n_layer,
                                .embed = true,
                                .head = true,
                                .experts = true};
}

static void take_cpus(void *arg, const char *folder, bool v2)
{
    int32_t *const most = arg;
    int32_t n = 0;
    if (weft_cgroup_cpus(folder, v2, &n) && n < *most) *most = n;
}

/* Cores that this process may run on, and has the time for. */
static int32_t cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int32_t n = CPU_COUNT(&set);
    weft_cgroup_each("cpu", take_cpus, &n);
    return n < 1 ? 1 : n;
}

weft_status weft_model_engine_options(const weft_options *options,
                                      const weft_model_config *config,
                                      weft_engine_options *engine_out,
                                      weft_err *err)
{
    weft_engine_options e = {
        .kv_bytes = options->kv_bytes,
        .page_tokens = options->page_tokens,
        .chunk_tokens = options->chunk_tokens,
        .max_seqs = options->max_seqs,
        .max_waiting = options->max_queue + options->max_seqs,
        .max_context = options->max_context > 0 ? options->max_context
                                                : config->max_context,
        .threads = options->threads > 0 ? options->threads : cores(),
        .profile = options->profile,
        .n_ranks = options->tensor_parallel,
    };
    if (e.n_ranks > 1)
        e.threads = e.threads > e.n_ranks ? e.threads / e.n_ranks : 1;
    WEFT_TRY(weft_ops_cpu(options->cpu_path, &e.ops, err));
    *engine_out = e;
    return WEFT_OK;
}
