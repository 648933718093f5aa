/* Server reflection: tells generic clients which services and messages there
 * are. Both versions share the messages of v1. */
#include <stdio.h>
#include <string.h>

#include "grpc/reflection/v1/reflection.pb-c.h"
#include "node/rpc/server_internal.h"
#include "proto/descriptors.h"
#include "proto/reflect.h"
#include "proto/validate.h"

typedef Grpc__Reflection__V1__ServerReflectionRequest request_type;
typedef Grpc__Reflection__V1__ServerReflectionResponse response_type;

enum { SERVICES_MAX = 16 };

static weft_span descriptors(void)
{
    return (weft_span){(const char *)weft_descriptors, weft_descriptors_bytes};
}

static weft_span span_of(ProtobufCBinaryData data)
{
    return (weft_span){(const char *)data.data, data.len};
}

static ProtobufCBinaryData data_of(const void *bytes, size_t n)
{
    union {
        const void *from;
        uint8_t *to;
    } data = {.from = bytes};
    return (ProtobufCBinaryData){.len = n, .data = data.to};
}

/* The answer to `request`, which still lacks what it asked for. */
static response_type answer_to(request_type *request)
{
    response_type m = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    m.valid_host = request->host;
    m.original_request = request;
    return m;
}

static void send_error(weft_call *c, request_type *request, const char *text)
{
    response_type m = answer_to(request);
    Grpc__Reflection__V1__ErrorResponse error =
        GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = WEFT_NOT_FOUND;
    error.error_message = data_of(text, strlen(text));
    m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    m.error_response = &error;
    weft_call_answer(c, weft_pack(&m.base));
}

static void send_file(weft_call *c, request_type *request, weft_span file)
{
    response_type m = answer_to(request);
    ProtobufCBinaryData bytes = data_of(file.data, file.n);
    Grpc__Reflection__V1__FileDescriptorResponse files =
        GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    files.n_file_descriptor_proto = 1;
    files.file_descriptor_proto = &bytes;
    m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    m.file_descriptor_response = &files;
    weft_call_answer(c, weft_pack(&m.base));
}

static void send_services(weft_call *c, request_type *request)
{
    response_type m = answer_to(request);
    char names[SERVICES_MAX][WEFT_SYMBOL_BYTES_MAX];
    Grpc__Reflection__V1__ServiceResponse services[SERVICES_MAX];
    Grpc__Reflection__V1__ServiceResponse *pointers[SERVICES_MAX];
    Grpc__Reflection__V1__ListServiceResponse list =
        GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    size_t n = 0;
    while (n < SERVICES_MAX &&
           weft_reflect_service(descriptors(), n, names[n])) {
        services[n] = (Grpc__Reflection__V1__ServiceResponse)
            GRPC__REFLECTION__V1__SERVICE_RESPONSE__INIT;
        services[n].name = data_of(names[n], strlen(names[n]));
        pointers[n] = &services[n];
        n++;
    }
    list.n_service = n;
    list.service = pointers;
    m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    m.list_services_response = &list;
    weft_call_answer(c, weft_pack(&m.base));
}

/* A message without extensions, which all of ours are. */
static void send_extensions(weft_call *c, request_type *request)
{
    const ProtobufCBinaryData type = request->all_extension_numbers_of_type;
    response_type m = answer_to(request);
    weft_span file;
    if (!weft_reflect_symbol(descriptors(), span_of(type), &file)) {
        send_error(c, request, "no message of that name");
        return;
    }
    Grpc__Reflection__V1__ExtensionNumberResponse numbers =
        GRPC__REFLECTION__V1__EXTENSION_NUMBER_RESPONSE__INIT;
    numbers.base_type_name = type;
    m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
    m.all_extension_numbers_response = &numbers;
    weft_call_answer(c, weft_pack(&m.base));
}

static void answer(weft_call *c, request_type *request)
{
    weft_span file;
    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        if (weft_reflect_file(descriptors(), span_of(request->file_by_filename),
                              &file))
            send_file(c, request, file);
        else
            send_error(c, request, "no file of that name");
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        if (weft_reflect_symbol(
                descriptors(), span_of(request->file_containing_symbol), &file))
            send_file(c, request, file);
        else
            send_error(c, request, "no symbol of that name");
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        send_error(c, request, "there are no extensions");
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        send_extensions(c, request);
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        send_services(c, request);
        return;
    default:
        weft_call_finish(c, WEFT_INVALID_ARGUMENT,
                         "message_request is not set");
    }
}

void weft_reflection_answer(weft_call *c, weft_span message)
{
    const uint8_t *bytes = (const uint8_t *)message.data;
    weft_err err = {0};
    const weft_status st = weft_message_validate(
        &grpc__reflection__v1__server_reflection_request__descriptor, bytes,
        message.n, &err);
    request_type *request =
        st != WEFT_OK ? NULL
                      : grpc__reflection__v1__server_reflection_request__unpack(
                            NULL, message.n, bytes);
    if (request == NULL) {
        weft_call_finish(c, WEFT_INVALID_ARGUMENT,
                         st != WEFT_OK ? err.text
                                       : "the message cannot be decoded");
        return;
    }
    answer(c, request);
    grpc__reflection__v1__server_reflection_request__free_unpacked(request,
                                                                   NULL);
}
