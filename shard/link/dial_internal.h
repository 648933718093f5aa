/* dial_internal.h - shaking hands, for both sides. For shard/link alone. */
#ifndef WEFT_SHARD_LINK_DIAL_INTERNAL_H
#define WEFT_SHARD_LINK_DIAL_INTERNAL_H

#include "shard/link/link_internal.h"

/* One dial; see weft_link_dial. */
typedef struct weft_dialling {
    const char *address;
    const weft_hello *own;
    weft_tls *tls;
    const weft_link_options *link;
    uint64_t deadline_ns;
    int abort_fd; /* readable: give up, CANCELLED; -1: none */
    /* After weft_hello_check; NULL: nothing more. A refusal is told the peer.
     */
    weft_status (*check)(void *arg, const weft_hello *peer, weft_err *err);
    void *arg;
} weft_dialling;

WEFT_MUST_CHECK weft_status weft_dial_run(const weft_dialling *dialling,
                                          weft_link **link_out,
                                          weft_hello *peer_out, weft_err *err);

/* HELLO or WELCOME. */
WEFT_MUST_CHECK weft_status weft_hello_send(weft_link *link,
                                            weft_frame_type type,
                                            const weft_hello *own,
                                            weft_err *err);
/* Also over a link that is broken by what it received. */
void weft_refuse_send(weft_link *link, const char *text);
/* The reason in a REFUSE frame, as one line. */
void weft_refuse_text(const weft_frame *frame, char *text_out, size_t bytes);

#endif
