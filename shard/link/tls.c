/* Sessions read and write the socket through a method of our own, because
 * OpenSSL's does not keep a write to a closed connection from raising SIGPIPE.
 */
#include "shard/link/tls.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/clock.h"
#include "node/base/file_watch.h"
#include "node/base/log.h"
#include "node/base/mem.h"

enum { FILES = 3 }; /* certificate, key, CA */
static_assert((int)FILES <= WEFT_FILE_WATCH_MAX, "all are watched");

struct weft_tls {
    weft_tls_files files; /* paths of its own */
    char *paths[FILES];
    pthread_mutex_t lock; /* of what follows */
    SSL_CTX *context;
    weft_file_watch watch; /* of paths */
};

struct weft_tls_session {
    SSL *ssl;
    int fd; /* the caller's */
    bool refused;
    char why[160];
};

/* -- the socket ----------------------------------------------------------- */

/* The data of a BIO is its session. */
static int fd_of(BIO *bio)
{
    return ((const weft_tls_session *)BIO_get_data(bio))->fd;
}

static int socket_write(BIO *bio, const char *bytes, int n)
{
    const ssize_t sent =
        send(fd_of(bio), bytes, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    BIO_clear_retry_flags(bio);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(bio);
    return (int)sent;
}

static int socket_read(BIO *bio, char *bytes, int n)
{
    const ssize_t got = recv(fd_of(bio), bytes, (size_t)n, MSG_DONTWAIT);
    BIO_clear_retry_flags(bio);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
    if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    return (int)got;
}

static long socket_control(BIO *bio, int what, long number, void *arg)
{
    (void)number;
    (void)arg;
    if (what == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
    return what == BIO_CTRL_FLUSH;
}

/* Of all sessions; never freed, as a session does not hold on to it. */
static pthread_once_t method_once = PTHREAD_ONCE_INIT;
static BIO_METHOD *method;

static void make_method(void)
{
    BIO_METHOD *const made =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "weft link");
    if (made == NULL) return;
    (void)BIO_meth_set_write(made, socket_write);
    (void)BIO_meth_set_read(made, socket_read);
    (void)BIO_meth_set_ctrl(made, socket_control);
    method = made;
}

/* -- the process ---------------------------------------------------------- */

/* What OpenSSL says was wrong first; the queue is empty after. */
static const char *reason(char *out, size_t bytes)
{
    const unsigned long code = ERR_get_error();
    const char *const text = code == 0 ? NULL : ERR_reason_error_string(code);
    (void)snprintf(out, bytes, "%s", text != NULL ? text : "unknown error");
    ERR_clear_error();
    return out;
}

static weft_status check_file(const char *what, const char *path, weft_err *err)
{
    if (access(path, R_OK) == 0) return WEFT_OK;
    return WEFT_FAIL(err,
                     errno == ENOENT ? WEFT_NOT_FOUND : WEFT_INVALID_ARGUMENT,
                     "%s %s: %s", what, path, strerror(errno));
}

static weft_status fail_file(const char *what, const char *path, weft_err *err)
{
    char why[160];
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT, "%s %s: %s", what, path,
                     reason(why, sizeof why));
}

static weft_status load(SSL_CTX *context, const weft_tls_files *files,
                        weft_err *err)
{
    WEFT_TRY(check_file("certificate", files->cert_file, err));
    WEFT_TRY(check_file("key", files->key_file, err));
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(context, files->cert_file) != 1)
        return fail_file("certificate", files->cert_file, err);
    if (SSL_CTX_use_PrivateKey_file(context, files->key_file,
                                    SSL_FILETYPE_PEM) != 1)
        return fail_file("key", files->key_file, err);
    if (SSL_CTX_check_private_key(context) != 1)
        return fail_file("key that does not fit the certificate",
                         files->key_file, err);
    if (files->ca_file == NULL) return WEFT_OK;
    WEFT_TRY(check_file("CA certificate", files->ca_file, err));
    if (SSL_CTX_load_verify_file(context, files->ca_file) != 1)
        return fail_file("CA certificate", files->ca_file, err);
    return WEFT_OK;
}

/* A passphrase cannot be asked for: the start must not wait for a terminal. */
static int no_passphrase(char *out, int bytes, int writes, void *arg)
{
    (void)out;
    (void)bytes;
    (void)writes;
    (void)arg;
    return -1;
}

/* Of what a client offers, HTTP/2; a client that offers something else alone
 * speaks a protocol that is not served. */
static int choose_protocol(SSL *ssl, const unsigned char **out,
                           unsigned char *out_bytes,
                           const unsigned char *offered, unsigned int bytes,
                           void *arg)
{
    static const unsigned char wanted[] = "\x02h2";
    unsigned char *chosen = NULL;
    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&chosen, out_bytes, wanted, sizeof wanted - 1,
                              offered, bytes) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static void set_up(SSL_CTX *context, const weft_tls_files *files)
{
    const int oldest = files->faces_clients ? TLS1_2_VERSION : TLS1_3_VERSION;
    (void)SSL_CTX_set_min_proto_version(context, oldest);
    /* No session is ever taken up again. */
    (void)SSL_CTX_set_num_tickets(context, 0);
    (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
    /* Where a stream is cut is told from its frames. */
    (void)SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_default_passwd_cb(context, no_passphrase);
    if (files->ca_file != NULL)
        SSL_CTX_set_verify(
            context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    if (files->faces_clients)
        SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
}

static weft_status make_context(const weft_tls_files *files,
                                SSL_CTX **context_out, weft_err *err)
{
    SSL_CTX *const context = SSL_CTX_new(TLS_method());
    if (context == NULL || method == NULL) {
        SSL_CTX_free(context);
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for TLS");
    }
    set_up(context, files);
    const weft_status st = load(context, files, err);
    if (st != WEFT_OK) {
        SSL_CTX_free(context);
        return st;
    }
    *context_out = context;
    return WEFT_OK;
}

/* The lock is held. */
static void look_at_files(weft_tls *tls)
{
    SSL_CTX *context = NULL;
    weft_err err = {0};
    if (!weft_file_watch_look(&tls->watch, weft_clock_now_ns())) return;
    if (make_context(&tls->files, &context, &err) != WEFT_OK) {
        weft_log(WEFT_LOG_WARN, "tls", "not_reloaded", "reason \"%s\"",
                 err.text);
        return;
    }
    SSL_CTX_free(tls->context); /* sessions hold on to it */
    tls->context = context;
    weft_log(WEFT_LOG_INFO, "tls", "reloaded", "certificate \"%s\"",
             tls->files.cert_file);
}

static weft_status check_files(const weft_tls_files *files, weft_err *err)
{
    const char *const missing =
        files->cert_file == NULL                          ? "the certificate"
        : files->key_file == NULL                         ? "the key"
        : files->ca_file == NULL && !files->faces_clients ? "the CA's"
                                                          : NULL;
    if (missing == NULL) return WEFT_OK;
    return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                     "TLS needs a certificate, its key, and for links the "
                     "certificate of the CA; %s is missing",
                     missing);
}

static weft_status copy_paths(weft_tls *tls, const weft_tls_files *files,
                              weft_err *err)
{
    const char *const from[FILES] = {files->cert_file, files->key_file,
                                     files->ca_file};
    for (int i = 0; i < FILES; i++) {
        if (from[i] == NULL) continue;
        tls->paths[i] = weft_mem_copy_text(from[i], strlen(from[i]));
        if (tls->paths[i] == NULL)
            return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for TLS");
    }
    tls->files = (weft_tls_files){.cert_file = tls->paths[0],
                                  .key_file = tls->paths[1],
                                  .ca_file = tls->paths[2],
                                  .faces_clients = files->faces_clients};
    return WEFT_OK;
}

weft_status weft_tls_create(const weft_tls_files *files, weft_tls **tls_out,
                            weft_err *err)
{
    const bool some = files->cert_file != NULL || files->key_file != NULL ||
                      files->ca_file != NULL;
    *tls_out = NULL;
    if (!some) return WEFT_OK;
    WEFT_TRY(check_files(files, err));
    weft_tls *const tls = weft_mem_new(1, sizeof *tls);
    if (tls == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory for TLS");
    (void)pthread_mutex_init(&tls->lock, NULL);
    (void)pthread_once(&method_once, make_method);
    weft_status st = copy_paths(tls, files, err);
    if (st == WEFT_OK) {
        memcpy(tls->watch.paths, tls->paths, sizeof tls->paths);
        weft_file_watch_begin(&tls->watch, weft_clock_now_ns());
        st = make_context(&tls->files, &tls->context, err);
    }
    if (st != WEFT_OK) {
        weft_tls_destroy(tls);
        return st;
    }
    *tls_out = tls;
    return WEFT_OK;
}

void weft_tls_destroy(weft_tls *tls)
{
    if (tls == NULL) return;
    SSL_CTX_free(tls->context); /* sessions hold on to it */
    for (int i = 0; i < FILES; i++) weft_mem_free(tls->paths[i]);
    (void)pthread_mutex_destroy(&tls->lock);
    weft_mem_free(tls);
}

/* -- one connection ------------------------------------------------------- */

weft_status weft_tls_open(weft_tls *tls, int fd, bool accepts,
                          weft_tls_session **session_out, weft_err *err)
{
    weft_tls_session *const session = weft_mem_new(1, sizeof *session);
    (void)pthread_mutex_lock(&tls->lock);
    look_at_files(tls);
    SSL *const ssl = SSL_new(tls->context);
    (void)pthread_mutex_unlock(&tls->lock);
    BIO *const bio = BIO_new(method);
    if (session == NULL || ssl == NULL || bio == NULL) {
        weft_mem_free(session);
        SSL_free(ssl);
        (void)BIO_free(bio);
        ERR_clear_error();
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a TLS session");
    }
    BIO_set_data(bio, session);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio); /* taken */
    if (accepts)
        SSL_set_accept_state(ssl);
    else
        SSL_set_connect_state(ssl);
    session->ssl = ssl;
    session->fd = fd;
    *session_out = session;
    return WEFT_OK;
}

void weft_tls_close(weft_tls_session *session)
{
    if (session == NULL) return;
    /* Says goodbye if the socket takes it at once. */
    if (session->why[0] == '\0' && SSL_is_init_finished(session->ssl))
        (void)SSL_shutdown(session->ssl);
    ERR_clear_error();
    SSL_free(session->ssl);
    weft_mem_free(session);
}

/* What a call that gave `result` means: errno, and `why` where it is EPROTO. */
static ptrdiff_t judge(weft_tls_session *session, int result, int why)
{
    char text[128];
    switch (SSL_get_error(session->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        if (why == 0) return 0;
        (void)snprintf(session->why, sizeof session->why, "%s", strerror(why));
        break;
    default:
        session->refused = true;
        /* The verifier's reason says more than "certificate verify failed". */
        if (SSL_get_verify_result(session->ssl) != X509_V_OK) {
            ERR_clear_error();
            (void)snprintf(session->why, sizeof session->why,
                           "TLS: its certificate: %s",
                           X509_verify_cert_error_string(
                               SSL_get_verify_result(session->ssl)));
        } else {
            (void)snprintf(session->why, sizeof session->why, "TLS: %s",
                           reason(text, sizeof text));
        }
        break;
    }
    errno = EPROTO;
    return -1;
}

static int clamp(size_t n)
{
    return n < INT_MAX ? (int)n : INT_MAX;
}

ptrdiff_t weft_tls_read(weft_tls_session *session, void *bytes, size_t n)
{
    ERR_clear_error();
    errno = 0;
    const int got = SSL_read(session->ssl, bytes, clamp(n));
    return got > 0 ? got : judge(session, got, errno);
}

ptrdiff_t weft_tls_write(weft_tls_session *session, const void *bytes, size_t n)
{
    ERR_clear_error();
    errno = 0;
    const int sent = SSL_write(session->ssl, bytes, clamp(n));
    if (sent > 0) return sent;
    const ptrdiff_t result = judge(session, sent, errno);
    if (result == 0) { /* the end, which a writer cannot take for success */
        (void)snprintf(session->why, sizeof session->why,
                       "closed by the other end");
        errno = EPROTO;
    }
    return -1;
}

int weft_tls_shake(weft_tls_session *session, bool *wants_out)
{
    ERR_clear_error();
    errno = 0;
    const int done = SSL_do_handshake(session->ssl);
    if (done == 1) return 1;
    *wants_out = SSL_get_error(session->ssl, done) == SSL_ERROR_WANT_WRITE;
    const ptrdiff_t result = judge(session, done, errno);
    if (result < 0 && errno == EAGAIN) return 0;
    if (result == 0)
        (void)snprintf(session->why, sizeof session->why,
                       "closed by the other end during the TLS handshake");
    return -1;
}

bool weft_tls_has_more(const weft_tls_session *session)
{
    /* SSL_has_pending counts records that are half there, of which nothing can
     * be read. None that is whole waits beyond the one at hand, since nothing
     * is read ahead. */
    return SSL_pending(session->ssl) > 0;
}

bool weft_tls_is_refused(const weft_tls_session *session)
{
    return session->refused;
}

const char *weft_tls_why(const weft_tls_session *session)
{
    return session->why;
}
