#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/file.h"
#include "node/base/mem.h"
#include "node/cluster/etcd_internal.h"

enum { FILE_BYTES_MAX = 1 << 20 };

#define RETRY_NS (1000 * WEFT_ETCD_MS)

static weft_status read_text(const char *path, char **text_out, weft_err *err)
{
    weft_buf buf = {0};
    if (path == NULL) return WEFT_OK;
    WEFT_TRY(weft_file_read_all(path, FILE_BYTES_MAX, &buf, err));
    *text_out = weft_mem_copy_text(buf.n > 0 ? buf.data : "", buf.n);
    weft_buf_deinit(&buf);
    return *text_out != NULL ? WEFT_OK
                             : WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                                         "no memory for %s", path);
}

/* What is wrong inside shows when it is used; a file of another kind at once.
 */
static weft_status read_pem(const char *path, char **text_out, weft_err *err)
{
    WEFT_TRY(read_text(path, text_out, err));
    if (*text_out == NULL || strstr(*text_out, "-----BEGIN ") != NULL)
        return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s: is no PEM file", path);
}

/* NAME:PASSWORD in the first line. */
static weft_status read_user(struct etcd_secret *s, const char *path,
                             weft_err *err)
{
    char *line = NULL;
    weft_status st = WEFT_OK;
    if (path == NULL) return WEFT_OK;
    WEFT_TRY(read_text(path, &line, err));
    line[strcspn(line, "\r\n")] = '\0';
    const char *colon = strchr(line, ':');
    if (colon == NULL || colon == line) {
        st = WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                       "%s: expected NAME:PASSWORD in its first line", path);
    } else {
        s->name = weft_mem_copy_text(line, (size_t)(colon - line));
        s->password = weft_mem_copy_text(colon + 1, strlen(colon + 1));
        if (s->name == NULL || s->password == NULL)
            st = WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for %s",
                           path);
    }
    weft_mem_free(line);
    return st;
}

weft_status weft_etcd_secret_init(struct etcd *e,
                                  const weft_etcd_options *options,
                                  weft_err *err)
{
    struct etcd_secret *s = &e->secret;
    if ((options->cert_file == NULL) != (options->key_file == NULL))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a certificate for etcd needs its key, and the other "
                         "way round");
    s->tls = options->ca_file != NULL || options->cert_file != NULL;
    WEFT_TRY(read_pem(options->ca_file, &s->ca, err));
    WEFT_TRY(read_pem(options->cert_file, &s->cert, err));
    WEFT_TRY(read_pem(options->key_file, &s->key, err));
    return read_user(s, options->user_file, err);
}

void weft_etcd_secret_deinit(struct etcd *e)
{
    struct etcd_secret *s = &e->secret;
    weft_mem_free(s->ca);
    weft_mem_free(s->cert);
    weft_mem_free(s->key);
    weft_mem_free(s->name);
    weft_mem_free(s->password);
    weft_mem_free(s->token);
}

bool weft_etcd_is_logged_in(const struct etcd *e)
{
    return e->secret.name == NULL || e->secret.token != NULL;
}

bool weft_etcd_token_refused(struct etcd *e, const struct etcd_call *call)
{
    if (call->code != GRPC_STATUS_UNAUTHENTICATED) return false;
    weft_mem_free(e->secret.token);
    e->secret.token = NULL;
    return true;
}

/* The token, a copy; NULL: the answer has none. */
static char *token_of(const struct etcd_call *call)
{
    enum { BYTES_MAX = 64 << 10 };
    weft_arena *arena;
    char *token = NULL;
    if (weft_arena_create(BYTES_MAX, &arena, NULL) != WEFT_OK) return NULL;
    const Etcdserverpb__AuthenticateResponse *r =
        (const Etcdserverpb__AuthenticateResponse *)weft_etcd_unpack(
            &etcdserverpb__authenticate_response__descriptor, call->answer,
            arena);
    /* What is no header text would end the process that sends it. */
    bool good = r != NULL && r->token.len > 0;
    for (size_t i = 0; good && i < r->token.len; i++)
        good = r->token.data[i] > ' ' && r->token.data[i] < 0x7f;
    if (good)
        token = weft_mem_copy_text((const char *)r->token.data, r->token.len);
    weft_arena_destroy(arena);
    return token;
}

static void on_ended(struct etcd *e, struct etcd_call *call)
{
    struct etcd_secret *s = &e->secret;
    s->next_ns = weft_clock_now_ns() + RETRY_NS;
    if (call->code != GRPC_STATUS_OK) {
        weft_etcd_failed(e, call->endpoint, call->code, &call->details);
        return;
    }
    s->token = token_of(call);
}

uint64_t weft_etcd_secret_turn(struct etcd *e, uint64_t now_ns)
{
    struct etcd_secret *s = &e->secret;
    if (weft_etcd_is_logged_in(e) || s->call.call != NULL || e->ending)
        return UINT64_MAX;
    if (now_ns < s->next_ns) return s->next_ns;
    weft_etcd_start(e, &s->call, "/etcdserverpb.Auth/Authenticate",
                    weft_etcd_authenticate(s->name, s->password), now_ns,
                    on_ended);
    return UINT64_MAX;
}
