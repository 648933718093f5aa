#include <arpa/inet.h>
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

/* Every host of the machine, in each way to write it that a resolver takes
 * ("0", "0x0", "::ffff:0.0.0.0"): no address that others can dial. */
static bool is_everywhere(const char *host)
{
    struct in_addr four;
    struct in6_addr six;
    if (inet_aton(host, &four) != 0) return four.s_addr == htonl(INADDR_ANY);
    if (inet_pton(AF_INET6, host, &six) != 1) return false;
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    static const unsigned char none[16];
    return memcmp(six.s6_addr, none, sizeof none) == 0 ||
           (memcmp(six.s6_addr, mapped, sizeof mapped) == 0 &&
            memcmp(six.s6_addr + sizeof mapped, none, 4) == 0);
}

static weft_status check_advertise(const weft_options *o, weft_err *err)
{
    if (o->advertise.text == NULL && is_everywhere(o->listen.at.host))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--advertise HOST:PORT is needed with --listen %s, "
                         "which is no address that others can reach",
                         o->listen.text);
    if (o->advertise.text != NULL && is_everywhere(o->advertise.at.host))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "--advertise %s is no address that others can reach",
                         o->advertise.text);
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
        WEFT_FLAG_GROUP,       WEFT_FLAG_STAGE,
        WEFT_FLAG_STAGES,      WEFT_FLAG_KV_BYTES,
        WEFT_FLAG_PAGE_TOKENS, WEFT_FLAG_CHUNK_TOKENS,
        WEFT_FLAG_MAX_SEQS,    WEFT_FLAG_MAX_QUEUE,
        WEFT_FLAG_MAX_CONTEXT, WEFT_FLAG_TENSOR_PARALLEL,
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
