#include "node/app/client_open.h"

#include "node/rpc/keys.h"

weft_status weft_client_open(const weft_options *options, uint64_t timeout_ns,
                             weft_client **client_out, weft_err *err)
{
    char key[WEFT_KEY_BYTES_MAX + 1];
    weft_client_options o = {.address = options->addr.text,
                             .timeout_ns = timeout_ns,
                             .ca_file = options->tls_ca};
    if (options->api_key_file != NULL) {
        WEFT_TRY(weft_keys_read_first(options->api_key_file, key, err));
        o.key = key;
    }
    return weft_client_create(&o, client_out, err);
}
