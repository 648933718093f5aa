#include <string.h>

#include "node/app/flags.h"

static weft_status check_registry(const weft_options *o, weft_err *err)
{
    if ((o->etcd == NULL) == (o->members == NULL))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "one of --etcd HOST:PORT,... and --members FILE is "
                         "needed, and only one");
    return WEFT_OK;
}

/* Every host of the machine is no address that others can dial. */
static weft_status check_advertise(const weft_options *o, weft_err *err)
{
    const char *const host = o->listen.at.host;
    const bool everywhere =
        strcmp(host, "0.0.0.0") == 0 || strspn(host, "0:") == strlen(host);
    if (everywhere && o->advertise.text == NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--advertise HOST:PORT is needed with --listen %s, "
                         "which is no address that others can reach",
                         o->listen.text);
    return WEFT_OK;
}

static weft_status check_tls(const weft_options *o, weft_err *err)
{
    const char *missing = NULL;
    if (o->link_cert == NULL) missing = "link-cert";
    if (o->link_key == NULL) missing = "link-key";
    if (o->link_ca == NULL) missing = "link-ca";
    const bool any =
        o->link_cert != NULL || o->link_key != NULL || o->link_ca != NULL;
    if (any && missing != NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--%s is missing: --link-cert, --link-key and "
                         "--link-ca go together",
                         missing);
    return WEFT_OK;
}

static weft_status check_etcd_files(const weft_options *o, weft_err *err)
{
    if (o->members != NULL &&
        (o->etcd_ca != NULL || o->etcd_cert != NULL || o->etcd_key != NULL ||
         o->etcd_user_file != NULL))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--members: --etcd-ca, --etcd-cert, --etcd-key and "
                         "--etcd-user-file have no meaning without --etcd");
    if ((o->etcd_cert == NULL) != (o->etcd_key == NULL))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--%s is missing: --etcd-cert and --etcd-key go "
                         "together",
                         o->etcd_cert == NULL ? "etcd-cert" : "etcd-key");
    return WEFT_OK;
}

static weft_status refuse_given(const weft_options *o, const weft_flag *flags,
                                size_t n, weft_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (weft_options_given(o, flags[i]))
            return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                             "--%s has no meaning with --role %s",
                             weft_flag_rows[flags[i]].name, o->role_name);
    return WEFT_OK;
}

static weft_status check_role(const weft_options *o, weft_err *err)
{
    static const weft_flag of_layers[] = {
        WEFT_FLAG_GROUP,    WEFT_FLAG_STAGE,       WEFT_FLAG_STAGES,
        WEFT_FLAG_KV_BYTES, WEFT_FLAG_PAGE_TOKENS, WEFT_FLAG_CHUNK_TOKENS,
        WEFT_FLAG_MAX_SEQS, WEFT_FLAG_MAX_QUEUE,   WEFT_FLAG_MAX_CONTEXT,
        WEFT_FLAG_PROFILE,
    };
    static const weft_flag of_experts[] = {WEFT_FLAG_EXPERT_BYTES};
    if (strcmp(o->role_name, "experts") == 0)
        return refuse_given(o, of_layers,
                            sizeof of_layers / sizeof of_layers[0], err);
    WEFT_TRY(refuse_given(o, of_experts, 1, err));
    if (o->stage >= o->stages)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--stage %d: with --stages %d it is 0 to %d", o->stage,
                         o->stages, o->stages - 1);
    return WEFT_OK;
}

weft_status weft_options_check_cluster(const weft_options *o, weft_err *err)
{
    const bool is_shard = o->command == WEFT_COMMAND_SHARD;
    if (!is_shard && o->command != WEFT_COMMAND_ROUTER) return WEFT_OK;
    WEFT_TRY(check_registry(o, err));
    WEFT_TRY(check_advertise(o, err));
    WEFT_TRY(check_tls(o, err));
    WEFT_TRY(check_etcd_files(o, err));
    return is_shard ? check_role(o, err) : WEFT_OK;
}
