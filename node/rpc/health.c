/* grpc.health.v1.Health: what probes and load balancers ask. */
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "node/rpc/server_internal.h"
#include "proto/validate.h"

typedef Grpc__Health__V1__HealthCheckResponse response_type;
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_type;

enum {
    UNKNOWN_SERVICE =
        GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN
};

grpc_byte_buffer *weft_pack(const ProtobufCMessage *message)
{
    grpc_slice slice =
        grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    (void)protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    return weft_bytes_buffer(&slice);
}

static bool is_ours(ProtobufCBinaryData service)
{
    static const char ours[] = "weft.v1.Generation";
    return service.len == 0 || (service.len == sizeof ours - 1 &&
                                memcmp(service.data, ours, service.len) == 0);
}

/* false: the call was refused. */
static bool read_request(weft_call *c, weft_span message, bool *known_out)
{
    const ProtobufCMessageDescriptor *type =
        &grpc__health__v1__health_check_request__descriptor;
    const uint8_t *bytes = (const uint8_t *)message.data;
    weft_err err = {0};
    const weft_status st = weft_message_validate(type, bytes, message.n, &err);
    Grpc__Health__V1__HealthCheckRequest *request =
        st != WEFT_OK ? NULL
                      : grpc__health__v1__health_check_request__unpack(
                            NULL, message.n, bytes);
    if (request == NULL) {
        weft_call_finish(c, WEFT_INVALID_ARGUMENT,
                         st != WEFT_OK ? err.text
                                       : "the message cannot be decoded");
        return false;
    }
    *known_out = is_ours(request->service);
    grpc__health__v1__health_check_request__free_unpacked(request, NULL);
    return true;
}

static int32_t serving(const weft_rpc_server *server)
{
    return atomic_load(&server->serving)
               ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
               : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
}

static grpc_byte_buffer *pack_status(int32_t status)
{
    response_type m = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    m.status = (serving_type)status;
    return weft_pack(&m.base);
}

void weft_health_check(weft_call *c, weft_span message)
{
    bool known;
    if (!read_request(c, message, &known)) return;
    if (!known) {
        weft_call_finish(c, WEFT_NOT_FOUND,
                         "no service of that name (there are \"\" and "
                         "weft.v1.Generation)");
        return;
    }
    weft_call_answer(c, pack_status(serving(c->server)));
    weft_call_finish(c, WEFT_OK, NULL);
}

void weft_health_watch(weft_call *c, weft_span message)
{
    bool known;
    if (!read_request(c, message, &known)) return;
    (void)pthread_mutex_lock(&c->lock);
    c->health_known = known;
    (void)pthread_mutex_unlock(&c->lock);
}

/* Watch: the status, whenever it is another than what was told. */
grpc_byte_buffer *weft_health_next(weft_call *c)
{
    const int32_t status =
        c->health_known ? serving(c->server) : UNKNOWN_SERVICE;
    if (c->ended || status == c->health_sent) return NULL;
    c->health_sent = status;
    return pack_status(status);
}
