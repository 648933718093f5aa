#include "node/rpc/http/http.h"

#include <microhttpd.h>
#include <string.h>
#include <unistd.h>

#include "node/base/address.h"
#include "node/base/mem.h"

enum {
    CONNECTIONS_MAX = 128,
    CONNECTIONS_PER_CLIENT_MAX = 64, /* by address */
    IDLE_SECONDS = 10,
    CONNECTION_BYTES = 16384, /* request line, headers and buffers */
};

struct weft_http_server {
    struct MHD_Daemon *daemon;
    weft_http_ops ops;
    char address[WEFT_ADDRESS_TEXT_BYTES];
};

static const char PLAIN[] = "text/plain; charset=utf-8";
/* Prometheus, "Exposition formats", text format 0.0.4. */
static const char METRICS[] = "text/plain; version=0.0.4; charset=utf-8";

static enum MHD_Result answer(struct MHD_Connection *connection, int status,
                              const char *type, const weft_buf *body)
{
    union {
        const char *from;
        void *to;
    } bytes = {.from = body->n > 0 ? body->data : ""};
    struct MHD_Response *response = MHD_create_response_from_buffer(
        body->n, bytes.to, MHD_RESPMEM_MUST_COPY);
    if (response == NULL) return MHD_NO; /* closes the connection */
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW,
                                      "GET, HEAD");
    const enum MHD_Result queued =
        MHD_queue_response(connection, (unsigned)status, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection,
                                   int status, const char *text)
{
    weft_buf body = {0};
    enum MHD_Result done = MHD_NO;
    if (weft_buf_add(&body, text, strlen(text), NULL) == WEFT_OK)
        done = answer(connection, status, PLAIN, &body);
    weft_buf_deinit(&body);
    return done;
}

static enum MHD_Result call(struct MHD_Connection *connection, weft_http_fn fn,
                            void *arg, const char *type)
{
    weft_buf body = {0};
    const int status = fn(arg, &body);
    const enum MHD_Result done = answer(connection, status, type, &body);
    weft_buf_deinit(&body);
    return done;
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *connection,
                              const char *path, const char *verb,
                              const char *version, const char *upload,
                              size_t *upload_bytes, void **state)
{
    const weft_http_server *server = arg;
    const weft_http_ops *ops = &server->ops;
    static int seen;
    (void)version;
    (void)upload;
    /* The first of several calls for one request: the headers are there. A body
     * is passed over in the calls between. */
    if (*state == NULL) {
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        *upload_bytes = 0;
        return MHD_YES;
    }
    if (strcmp(verb, MHD_HTTP_METHOD_GET) != 0 &&
        strcmp(verb, MHD_HTTP_METHOD_HEAD) != 0)
        return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                           "only GET and HEAD are allowed\n");
    if (strcmp(path, "/healthz") == 0)
        return call(connection, ops->healthz, ops->arg, PLAIN);
    if (strcmp(path, "/readyz") == 0)
        return call(connection, ops->readyz, ops->arg, PLAIN);
    if (strcmp(path, "/metrics") == 0)
        return call(connection, ops->metrics, ops->arg, METRICS);
    return answer_text(connection, MHD_HTTP_NOT_FOUND,
                       "there are /healthz, /readyz and /metrics\n");
}

/* The library's own lines are about clients that misbehave: not ours to tell.
 */
static void hush(void *arg, const char *format, va_list args)
{
    (void)arg;
    (void)format;
    (void)args;
}

static weft_status start(weft_http_server *server, int fd, weft_err *err)
{
    server->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        handle, server, MHD_OPTION_EXTERNAL_LOGGER, hush, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS_MAX, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS_PER_CLIENT_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_END);
    if (server->daemon != NULL) return WEFT_OK;
    (void)close(fd);
    return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                     "no thread or memory for the HTTP server");
}

weft_status weft_http_server_start(const char *listen, const weft_http_ops *ops,
                                   weft_http_server **server_out, weft_err *err)
{
    int fd;
    weft_address address;
    WEFT_TRY(weft_address_parse(listen, &address, err));
    WEFT_TRY(weft_address_listen(&address, &fd, &address.port, err));
    weft_http_server *server = weft_mem_new(1, sizeof *server);
    if (server == NULL) {
        (void)close(fd);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for the HTTP server");
    }
    server->ops = *ops;
    weft_address_print(&address, server->address);
    const weft_status st = start(server, fd, err);
    if (st != WEFT_OK) {
        weft_mem_free(server);
        return st;
    }
    *server_out = server;
    return WEFT_OK;
}

const char *weft_http_server_address(const weft_http_server *server)
{
    return server->address;
}

void weft_http_server_destroy(weft_http_server *server)
{
    if (server == NULL) return;
    MHD_stop_daemon(server->daemon); /* closes the socket */
    weft_mem_free(server);
}
