#include "node/app/membership.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "node/app/view.h"
#include "node/base/clock.h"
#include "node/base/mem.h"

static const uint64_t REGISTRY_WAIT_NS = UINT64_C(10000000000);
/* Frames that do not leave for so long though the peer is not silent: as long
 * as a step may take, since whoever computes does not read meanwhile. */
static const uint64_t LINK_STALL_NS = WEFT_STEP_HANGS_NS;

/* "HOST:PORT" from its last colon on. */
static const char *port_of(const char *address)
{
    const char *const colon = strrchr(address, ':');
    return colon == NULL ? "" : colon + 1;
}

static weft_status take_id(weft_membership *m, const char *bound_address,
                           weft_err *err)
{
    char host[WEFT_ID_BYTES] = "";
    const bool is_router = m->options->role == WEFT_ROLE_ROUTER;
    if (m->options->id != NULL) {
        (void)snprintf(m->id, sizeof m->id, "%s", m->options->id);
        return WEFT_OK;
    }
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        return WEFT_FAIL(err, WEFT_UNAVAILABLE,
                         "the host's name is not told; --id NAME gives one");
    const int n =
        snprintf(m->id, sizeof m->id, "%s%s%s", host, is_router ? "-" : "",
                 is_router ? port_of(bound_address) : "");
    if (n < 0 || (size_t)n >= sizeof m->id)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "the host's name %s is too long for an id; --id NAME "
                         "gives one",
                         host);
    return WEFT_OK;
}

static void fill_hello(weft_membership *m, const weft_model_config *config,
                       weft_checkpoint *checkpoint, const char *identity)
{
    const weft_options *const o = m->options;
    weft_hello *const h = &m->hello;
    *h = (weft_hello){
        .protocol_min = WEFT_PROTOCOL_MIN,
        .protocol_max = WEFT_PROTOCOL_MAX,
        .role = o->role,
        .config_hash = weft_model_config_hash(config),
        .weights_hash =
            checkpoint == NULL
                ? 0
                : weft_checkpoint_get_stats(checkpoint)->weights_hash,
    };
    (void)snprintf(h->release, sizeof h->release, "%s (%.16s)",
                   weft_version_text(), weft_version_commit());
    (void)snprintf(h->cluster, sizeof h->cluster, "%s", o->cluster);
    (void)snprintf(h->id, sizeof h->id, "%s", m->id);
    if (identity != NULL)
        (void)snprintf(h->identity, sizeof h->identity, "%s", identity);
    if (o->role != WEFT_ROLE_LAYERS) return;
    h->group = o->group;
    h->stage = o->stage;
    h->n_stages = o->stages;
    (void)snprintf(h->profile, sizeof h->profile, "%s", o->profile_name);
}

static weft_status take_shape(weft_membership *m,
                              const weft_model_config *config,
                              weft_checkpoint *checkpoint, weft_err *err)
{
    m->shape = (weft_placement_shape){.n_layer = config->n_layer,
                                      .n_expert = config->n_expert,
                                      .moe = config->moe};
    if (checkpoint == NULL) return WEFT_OK;
    m->expert_bytes =
        weft_mem_new((size_t)config->n_layer, sizeof *m->expert_bytes);
    if (m->expert_bytes == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED, "no memory");
    m->shape.expert_bytes = m->expert_bytes;
    for (int32_t l = 0; l < config->n_layer; l++) {
        if (!config->moe[l]) continue;
        WEFT_TRY(weft_checkpoint_expert_bytes(checkpoint, l,
                                              &m->expert_bytes[l], err));
    }
    return WEFT_OK;
}

weft_status weft_membership_begin(weft_membership *m,
                                  const weft_options *options,
                                  const weft_model_config *config,
                                  weft_checkpoint *checkpoint,
                                  const char *bound_address,
                                  const char *identity, weft_err *err)
{
    const weft_tls_files files = {.cert_file = options->link_cert,
                                  .key_file = options->link_key,
                                  .ca_file = options->link_ca};
    *m = (weft_membership){.options = options};
    (void)pthread_mutex_init(&m->lock, NULL);
    WEFT_TRY(take_id(m, bound_address, err));
    fill_hello(m, config, checkpoint, identity);
    WEFT_TRY(take_shape(m, config, checkpoint, err));
    WEFT_TRY(weft_tls_create(&files, &m->tls, err));
    return weft_pulse_start(WEFT_PULSE_NS, &m->pulse, err);
}

weft_link_options weft_membership_link(const weft_frame_limits *limits)
{
    return (weft_link_options){.limits = *limits,
                               .silence_ns = WEFT_SILENCE_NS,
                               .stall_ns = LINK_STALL_NS};
}

weft_status weft_membership_address(const weft_membership *m,
                                    const char *bound_address,
                                    char address_out[WEFT_ADDRESS_BYTES],
                                    weft_err *err)
{
    const weft_flag_address *const told = &m->options->advertise;
    int n = 0;
    if (told->text == NULL)
        n = snprintf(address_out, WEFT_ADDRESS_BYTES, "%s", bound_address);
    else if (told->at.port != 0)
        n = snprintf(address_out, WEFT_ADDRESS_BYTES, "%s", told->text);
    else
        n = snprintf(address_out, WEFT_ADDRESS_BYTES, "%.*s%s",
                     (int)(port_of(told->text) - told->text), told->text,
                     port_of(bound_address));
    if (n < 0 || n >= WEFT_ADDRESS_BYTES)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--advertise: the address is too long");
    return WEFT_OK;
}

static weft_status open_registry(const weft_options *o,
                                 weft_registry **registry_out, weft_err *err)
{
    const weft_etcd_options etcd = {.endpoints = o->etcd,
                                    .cluster = o->cluster,
                                    .ca_file = o->etcd_ca,
                                    .cert_file = o->etcd_cert,
                                    .key_file = o->etcd_key,
                                    .user_file = o->etcd_user_file};
    const weft_status st =
        o->members != NULL
            ? weft_registry_create_static(o->members, registry_out, err)
            : weft_registry_create_etcd(&etcd, registry_out, err);
    if (st == WEFT_OK) return st;
    return WEFT_WRAP(err, st, "%s",
                     o->members != NULL ? "--members" : "--etcd");
}

weft_status weft_membership_join(weft_membership *m, const weft_member *self,
                                 const weft_cluster_ops *ops,
                                 weft_doing *doing_out, weft_err *err)
{
    const weft_hello *const h = &m->hello;
    weft_cluster_options options = {.is_static = m->options->members != NULL,
                                    .self = *self,
                                    .shape = m->shape,
                                    .replicas = m->options->expert_replicas,
                                    .controls = h->role == WEFT_ROLE_ROUTER,
                                    .ops = *ops};
    weft_member *const s = &options.self;
    s->role = h->role;
    s->group = h->group;
    s->stage = h->stage;
    s->n_stages = h->n_stages;
    s->config_hash = h->config_hash;
    s->weights_hash = h->weights_hash;
    memcpy(s->id, m->id, sizeof s->id);
    memcpy(s->release, h->release, sizeof s->release);
    memcpy(s->identity, h->identity, sizeof s->identity);
    *doing_out = WEFT_DOING_USAGE;
    WEFT_TRY(open_registry(m->options, &options.registry, err));
    *doing_out = WEFT_DOING_START;
    (void)pthread_mutex_lock(&m->lock);
    weft_status st = weft_cluster_start(&options, &m->cluster, err);
    (void)pthread_mutex_unlock(&m->lock);
    if (st != WEFT_OK) return st;
    st = weft_cluster_wait_registered(m->cluster,
                                      weft_clock_now_ns() + REGISTRY_WAIT_NS,
                                      &m->hello.incarnation, err);
    if (st == WEFT_UNAVAILABLE || st == WEFT_DEADLINE_EXCEEDED)
        *doing_out = WEFT_DOING_REACH;
    return st;
}

weft_cluster *weft_membership_cluster(weft_membership *m)
{
    (void)pthread_mutex_lock(&m->lock);
    weft_cluster *const cluster = m->cluster;
    (void)pthread_mutex_unlock(&m->lock);
    return cluster;
}

void weft_membership_leave(weft_membership *m)
{
    weft_cluster_leave(m->cluster);
}

void weft_membership_end(weft_membership *m)
{
    weft_cluster_stop(m->cluster);
    weft_pulse_stop(m->pulse);
    weft_tls_destroy(m->tls);
    weft_mem_free(m->expert_bytes);
    if (m->options != NULL) (void)pthread_mutex_destroy(&m->lock); /* begun */
    *m = (weft_membership){0};
}
