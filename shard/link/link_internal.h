/* link_internal.h - what a transport of links fills in, and what all of them
 * share. For shard/link and its tests.
 *
 * A transport's link begins with a weft_link. What is common is done before
 * and after an entry is called: a broken link reaches no entry but `close`, and
 * `send` gets frames that were checked.
 */
#ifndef WEFT_SHARD_LINK_LINK_INTERNAL_H
#define WEFT_SHARD_LINK_LINK_INTERNAL_H

#include <stdatomic.h>

#include "shard/link/dial.h"
#include "shard/link/link.h"

enum {
    WEFT_LINK_QUEUE_FRAMES = 64, /* where options say 0 */
    WEFT_LINK_NAME_BYTES = 96,
};

/* Owner's thread, but for `pulse`. Nothing blocks but `flush`. */
typedef struct weft_transport_ops {
    const char *name; /* "local", "tcp" */
    void (*close)(weft_link *link);
    /* Rows are borrowed until is_idle, or copied. */
    weft_status (*send)(weft_link *link, const weft_frame *frame,
                        const void *const *rows, weft_err *err);
    bool (*is_idle)(const weft_link *link);
    weft_status (*flush)(weft_link *link, uint64_t deadline_ns, weft_err *err);
    /* Gives every frame to weft_link_meet first. */
    weft_status (*recv)(weft_link *link, weft_frame *frame_out, bool *got_out,
                        weft_err *err);
    /* Whether recv has something to say that the descriptor does not show. */
    bool (*is_ready)(const weft_link *link);
    void (*pulse)(weft_link *link, uint64_t step);
    /* While a frame that recv gave out is held back: sends on, and takes note
     * of whether anything comes. false: the other end has gone. NULL: of a
     * transport whose links are never near. */
    bool (*pump)(weft_link *link);
} weft_transport_ops;

struct weft_link {
    const weft_transport_ops *ops;
    weft_link_options options;
    char name[WEFT_LINK_NAME_BYTES];
    int fd; /* readable when there may be something to receive, writable
               when there is room to send */
    struct weft_near_link *near; /* near_internal.h; NULL: none */
    bool polls_out;              /* a poller waits for the latter, too */
    bool shaking; /* frames of the handshake are given to the owner */
    atomic_bool broken;
    weft_err why;      /* of a broken link; owner's */
    weft_status cause; /* what a frame was refused with; OK: it was not that */
    uint64_t frames_sent, frames_received, bytes_received;
    _Atomic uint64_t bytes_sent, pulse_step, last_heard_ns, last_progress_ns;
};

void weft_link_init(weft_link *link, const weft_transport_ops *ops, int fd,
                    const weft_link_options *options);
void weft_link_set_name(weft_link *link, const char *name);

/* The link is broken from here on; UNAVAILABLE with its name and the reason. */
weft_status weft_link_break(weft_link *link, weft_err *err, const char *format,
                            ...) WEFT_PRINTF(3, 4);

/* UNAVAILABLE with the reason, if it is broken. */
WEFT_MUST_CHECK weft_status weft_link_check_unbroken(const weft_link *link,
                                                     weft_err *err);
/* How long before now_ns, but not before since_ns. */
uint64_t weft_link_age(uint64_t now_ns, uint64_t at_ns, uint64_t since_ns);
/* As weft_link_send of a frame that was checked. */
WEFT_MUST_CHECK weft_status weft_link_send_checked(weft_link *link,
                                                   const weft_frame *frame,
                                                   const void *const *rows,
                                                   weft_err *err);
/* Whether recv has something to say that the descriptor does not show. */
bool weft_link_is_ready(const weft_link *link);

typedef enum weft_meeting {
    WEFT_MEET_GIVE, /* to the owner */
    WEFT_MEET_SKIP, /* the link's own; look for another */
    WEFT_MEET_END,  /* the link is broken, for the reason in its `why` */
} weft_meeting;
weft_meeting weft_link_meet(weft_link *link, const weft_frame *frame);

/* A link over a connected, non-blocking TCP socket, and a TLS session over it
 * (NULL: plain), both taken on success. A link that is shaking hands holds its
 * peer to the few bytes of a hello until it is settled. */
WEFT_MUST_CHECK weft_status weft_link_create_tcp(
    int fd, weft_tls_session *session, bool shaking,
    const weft_link_options *options, weft_link **link_out, weft_err *err);
/* The handshake is over: these limits and times from here on. `protocol`: what
 * both ends speak; `dials`: this one did. */
void weft_link_settle_tcp(weft_link *link, const weft_link_options *options,
                          uint32_t protocol, bool dials);

#endif
