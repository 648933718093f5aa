/* tls.h - TLS through OpenSSL, for links and for whoever else has a socket.
 *
 * Two uses. Links: TLS 1.3, both ends show certificates that ca_file signed;
 * names in them are not looked at, since members are told apart by what they
 * say in their hello. Clients: a server's side for programs of others: TLS 1.2
 * or 1.3, HTTP/2 agreed by ALPN, a certificate asked of the client only if
 * there is a ca_file.
 *
 * Files are read at create, and again when one has changed, so that a renewed
 * certificate needs no restart: connections that come after, within about a
 * second, get the new one. Files that are wrong by then are logged, and the old
 * ones stay.
 *
 * Threads: create and destroy by one; open by any; a session by one at a time.
 */
#ifndef WEFT_SHARD_LINK_TLS_H
#define WEFT_SHARD_LINK_TLS_H

#include <stdbool.h>
#include <stddef.h>

#include "node/base/err.h"

/* PEM files. Links need all three; NULL pointers in all three: no TLS. */
typedef struct weft_tls_files {
    const char *cert_file, *key_file, *ca_file;
    bool faces_clients; /* the second use; ca_file may be NULL */
} weft_tls_files;

typedef struct weft_tls weft_tls; /* shared by any number of sessions */

/* INVALID_ARGUMENT or NOT_FOUND: names the file. *tls_out NULL without files.*/
WEFT_MUST_CHECK weft_status weft_tls_create(const weft_tls_files *files,
                                            weft_tls **tls_out, weft_err *err);
void weft_tls_destroy(weft_tls *tls); /* sessions stay; NULL is fine */

/* -- one connection ------------------------------------------------------- */

typedef struct weft_tls_session weft_tls_session;

/* Over a connected, non-blocking socket, which stays the caller's. */
WEFT_MUST_CHECK weft_status weft_tls_open(weft_tls *tls, int fd, bool accepts,
                                          weft_tls_session **session_out,
                                          weft_err *err);
void weft_tls_close(weft_tls_session *session); /* not the fd; NULL is fine */
/* As recv and send of a non-blocking socket: bytes moved, 0 at the end, or -1
 * and errno: EAGAIN, or EPROTO with weft_tls_why. The first ones shake hands.
 */
ptrdiff_t weft_tls_read(weft_tls_session *session, void *bytes, size_t n);
ptrdiff_t weft_tls_write(weft_tls_session *session, const void *bytes,
                         size_t n);
/* 1: done. 0: not yet; *wants_out what for. -1: failed, with weft_tls_why. */
int weft_tls_shake(weft_tls_session *session, bool *wants_out);
/* Bytes that were read from the socket and have not been given out yet. */
bool weft_tls_has_more(const weft_tls_session *session);
/* Whether it failed because one end did not want the other, or did not speak
 * TLS. */
bool weft_tls_is_refused(const weft_tls_session *session);
const char *weft_tls_why(const weft_tls_session *session);

#endif
