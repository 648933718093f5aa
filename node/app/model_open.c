#include "node/app/model_open.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static weft_status open_tokenizer(const char *dir, weft_opened *o,
                                  weft_err *err)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (n < 0 || (size_t)n >= sizeof path)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "model folder: its name is longer than %d bytes",
                         PATH_BYTES);
    if (access(path, F_OK) != 0) return WEFT_OK;
    return weft_tokenizer_read(path, o->config.vocab_size, &o->tokenizer, err);
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

void weft_model_close(weft_opened *opened)
{
    weft_tokenizer_destroy(opened->tokenizer);
    weft_checkpoint_close(opened->checkpoint);
    opened->tokenizer = NULL;
    opened->checkpoint = NULL;
}

/* Cores that this process may run on. */
static int32_t cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    const int n = CPU_COUNT(&set);
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
    };
    WEFT_TRY(weft_ops_cpu(options->cpu_path, &e.ops, err));
    *engine_out = e;
    return WEFT_OK;
}
