/* server_internal.h - what the files of the RPC server share.
 *
 * One thread, the loop, takes tags off the completion queue and runs all
 * handlers. Other threads touch a call under its lock, and wake the loop with
 * an empty batch.
 *
 * Locks: the server's before a call's; neither is held while an op is called,
 * but for generate_ended, which is called under a call's.
 */
#ifndef WEFT_NODE_RPC_SERVER_INTERNAL_H
#define WEFT_NODE_RPC_SERVER_INTERNAL_H

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <protobuf-c/protobuf-c.h>
#include <pthread.h>
#include <stdatomic.h>

#include "node/base/arena.h"
#include "node/rpc/bytes.h"
#include "node/rpc/listener.h"
#include "node/rpc/pending.h"
#include "node/rpc/server.h"
#include "node/rpc/tls_front.h"

enum {
    STATUS_TEXT_BYTES = 512,
    METHODS_MAX = 16,
};

typedef enum tag_kind {
    TAG_NEW,   /* a call has come, or the server is shut down */
    TAG_RECV,  /* a message of a client's stream */
    TAG_SEND,  /* the message or status in flight is out */
    TAG_CLOSE, /* the call is over; call->cancelled says how */
    TAG_WAKE,  /* another thread has something for the loop */
    N_TAGS,
} tag_kind;

typedef struct tag {
    tag_kind kind;
    weft_call *call;
} tag;

/* How the server treats one path. All run on the loop. */
typedef struct method {
    const char *path;
    bool is_generate; /* counted by generate_ended */
    bool is_stream;   /* of the client too: messages are read one by one */
    bool is_endless;  /* ends only when its client or the server does */
    /* A call with its message; lock not held. */
    void (*begin)(weft_call *call, weft_span message);
    /* The next message to send, or NULL for none; called with the lock held,
     * which it may give up meanwhile. NULL: none but call->answer. */
    grpc_byte_buffer *(*next)(weft_call *call);
} method;

struct weft_call {
    tag tags[N_TAGS];
    weft_rpc_server *server;
    const method *method;      /* NULL: none has the path */
    weft_call *before, *after; /* list of live calls; the server's lock */
    uint64_t id, begun_ns, deadline_ns;

    /* The loop's. */
    grpc_call *call;
    grpc_metadata_array metadata;
    grpc_call_details details; /* if method is NULL */
    gpr_timespec deadline;
    grpc_byte_buffer *received;
    int cancelled;
    grpc_byte_buffer *in_flight;
    weft_pending packing; /* the waiting chunk while it is packed */
    weft_arena *arena;    /* the decoded request */

    bool wants_stream; /* Generate: chunks are wanted; set before the op */

    pthread_mutex_t lock; /* of what follows */
    int outstanding;      /* batches whose tags have not come back */
    bool wake_posted, send_posted, recv_posted;
    bool metadata_sent, status_sent;
    bool dead;          /* nothing can reach the client any more */
    bool service_holds; /* the service has not ended it */
    bool cancel_told;
    bool ended; /* status is what the client gets once all is sent */
    weft_status status;
    char text[STATUS_TEXT_BYTES];
    int64_t retry_after_ms;
    grpc_metadata retry;
    uint64_t send_since_ns;
    weft_pending pending;
    grpc_byte_buffer *answer; /* a message that is sent after the chunks */
    int32_t health_sent;      /* Watch: the last status told; -1: none */
    bool health_known;        /* Watch: the service is one of ours */
};

struct weft_rpc_server {
    weft_rpc_options options;
    char *address;
    weft_listener *listener;
    weft_tls_front *front; /* NULL: plain */
    grpc_server *grpc;
    grpc_server_credentials *plain;
    grpc_completion_queue *queue, *stop_queue;
    pthread_t loop;
    bool loop_runs, stopped;
    void *registered[METHODS_MAX];     /* gRPC's handles, as weft_methods */
    weft_call *armed[METHODS_MAX + 1]; /* waiting for a call; the last: any */

    atomic_bool serving, stopping;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t idle;  /* n_live is 0 */
    weft_call *live;
    int32_t n_live;
    uint64_t last_id;
};

/* methods.c */
extern const method weft_methods[];
extern const size_t weft_n_methods;

/* health.c and reflection.c: the entries of that table. */
void weft_health_check(weft_call *call, weft_span message);
void weft_health_watch(weft_call *call, weft_span message);
grpc_byte_buffer *weft_health_next(weft_call *call);
void weft_reflection_answer(weft_call *call, weft_span message);
/* A message of protobuf-c, packed. */
grpc_byte_buffer *weft_pack(const ProtobufCMessage *message);

/* call.c; on the loop, lock not held, unless said otherwise */
weft_call *weft_call_create(weft_rpc_server *server, const method *how);
/* Never started: no call of a client is in it. */
void weft_call_discard(weft_call *call);
/* A client's call is in it, counted in n_live, which is given. */
void weft_call_begin(weft_call *call, int32_t n_live);
void weft_call_on_tag(weft_call *call, tag_kind kind, bool success);
/* End a call that the service does not hold. text NULL or "": none. */
void weft_call_finish(weft_call *call, weft_status status, const char *text);
/* Queue a message; buffer is taken. */
void weft_call_answer(weft_call *call, grpc_byte_buffer *buffer);
/* Any thread; lock held or not held as named. */
void weft_call_wake_locked(weft_call *call);
void weft_call_kill_locked(weft_call *call, weft_status status,
                           const char *text);
/* Cut it if its client has taken nothing for too long. */
void weft_call_check_stall(weft_call *call, uint64_t now_ns);

#endif
