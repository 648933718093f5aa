/* How the two ends of a link come to near rows (near.h). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/mem.h"
#include "node/base/pack.h"
#include "node/base/str.h"
#include "shard/link/near_internal.h"

/* -- bodies --------------------------------------------------------------- */

size_t weft_near_encode(const weft_near_said *said,
                        unsigned char body_out[WEFT_NEAR_BODY_BYTES_MAX])
{
    weft_pack p = weft_pack_into(body_out, WEFT_NEAR_BODY_BYTES_MAX);
    weft_pack_u32(&p, (uint32_t)said->say);
    switch (said->say) {
    case WEFT_SAY_OFFER:
    case WEFT_SAY_AGREE:
        weft_pack_u32(&p, said->version);
        weft_pack_u32(&p, said->rows_max);
        weft_pack_u32(&p, said->row_bytes);
        break;
    case WEFT_SAY_DECLINE:
    case WEFT_SAY_FAIL:
        weft_pack_raw(&p, said->why, strnlen(said->why, sizeof said->why - 1));
        break;
    case WEFT_SAY_NOTHING:
    case WEFT_SAY_READY: break;
    }
    if (said->say == WEFT_SAY_OFFER)
        weft_pack_raw(&p, said->ids, sizeof said->ids);
    return p.n;
}

weft_status weft_near_decode(const weft_frame *frame, weft_near_said *said_out,
                             weft_err *err)
{
    weft_near_said said = {.say = WEFT_SAY_NOTHING};
    weft_unpack u = weft_unpack_from(frame->body, frame->body_bytes);
    const uint32_t say = weft_unpack_u32(&u);
    const bool known = say >= WEFT_SAY_OFFER && say <= WEFT_SAY_FAIL;
    if (!u.bad && known) said.say = (weft_near_say)say;
    if (said.say == WEFT_SAY_OFFER || said.say == WEFT_SAY_AGREE) {
        said.version = weft_unpack_u32(&u);
        said.rows_max = weft_unpack_u32(&u);
        said.row_bytes = weft_unpack_u32(&u);
    }
    if (said.say == WEFT_SAY_OFFER) {
        const void *const ids = weft_unpack_raw(&u, sizeof said.ids);
        if (ids != NULL) memcpy(said.ids, ids, sizeof said.ids);
    }
    if (said.say == WEFT_SAY_DECLINE || said.say == WEFT_SAY_FAIL) {
        char raw[WEFT_NEAR_WHY_BYTES] = {0};
        const size_t n = (size_t)(u.end - u.at);
        const void *const text = n < sizeof raw ? weft_unpack_raw(&u, n) : NULL;
        if (text != NULL && n > 0) memcpy(raw, text, n);
        (void)weft_text_line(raw, said.why, sizeof said.why);
    }
    if (said.say == WEFT_SAY_NOTHING || !weft_unpack_done(&u) ||
        frame->n_rows != 0)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "a frame \"comm\" that says %u in %zu bytes and %d "
                         "rows",
                         (unsigned)say, frame->body_bytes, (int)frame->n_rows);
    *said_out = said;
    return WEFT_OK;
}

/* -- saying --------------------------------------------------------------- */

static bool send_said(weft_link *link, const weft_near_said *said)
{
    unsigned char body[WEFT_NEAR_BODY_BYTES_MAX];
    const weft_frame frame = {.type = WEFT_FRAME_COMM,
                              .body = body,
                              .body_bytes = weft_near_encode(said, body)};
    /* Where nothing can be sent any more, recv tells. */
    return weft_link_send_checked(link, &frame, NULL, NULL) !=
           WEFT_RESOURCE_EXHAUSTED;
}

/* What is due is said before anything else. */
static void say(weft_link *link)
{
    weft_near_link *const near = link->near;
    if (near->due.say != WEFT_SAY_NOTHING && send_said(link, &near->due))
        near->due.say = WEFT_SAY_NOTHING;
}

static uint32_t at_most(uint32_t one, uint32_t other)
{
    return one < other ? one : other;
}

/* OFFER or AGREE: what is taken here. */
static void say_terms(weft_link *link, weft_near_say what)
{
    weft_near_link *const near = link->near;
    const weft_frame_limits *const in = &weft_near_options_of(near->pool)->in;
    const weft_frame_limits *const limits = &link->options.limits;
    near->due = (weft_near_said){
        .say = what,
        .version = (uint32_t)near->api->version,
        .rows_max = at_most((uint32_t)in->rows_max, (uint32_t)limits->rows_max),
        .row_bytes = at_most(in->row_bytes_max, limits->row_bytes_max),
    };
    memcpy(near->due.ids, near->ids, sizeof near->ids);
}

static void take_terms(weft_near_link *near, const weft_near_said *said)
{
    near->peer_rows_max = said->rows_max;
    near->peer_row_bytes = said->row_bytes;
}

/* -- ends ----------------------------------------------------------------- */

static void drop_comms(weft_near_link *near)
{
    if (near->state == WEFT_NEAR_READY) weft_near_counted(near->pool, -1);
    near->state = WEFT_NEAR_OVER;
    near->held = false;
    near->n_sent = 0;
    near->wants_room = false;
    weft_near_end_comms(near);
}

/* The link stays what it is. */
static void stay(weft_link *link, const char *why)
{
    drop_comms(link->near);
    link->options.limits.near = false;
    link->near->n_failed++;
    weft_log(WEFT_LOG_WARN, "link", "rows", "peer \"%s\" rows tcp why \"%s\"",
             link->name, why);
}

/* And the other end is told so. */
static void stay_and_say(weft_link *link, weft_near_say what, const char *why)
{
    weft_near_link *const near = link->near;
    stay(link, why);
    near->due = (weft_near_said){.say = what};
    (void)snprintf(near->due.why, sizeof near->due.why, "%s", why);
    say(link);
}

void weft_near_abort(weft_near_link *near)
{
    if (near->state == WEFT_NEAR_READY) weft_near_counted(near->pool, -1);
    near->state = WEFT_NEAR_OVER;
    near->held = false;
    near->due.say = WEFT_SAY_NOTHING;
    if (near->out != NULL) near->api->abort(near->out);
    if (near->in != NULL) near->api->abort(near->in);
}

/* -- beginning ------------------------------------------------------------ */

static weft_status begin_one(weft_link *link, bool out, weft_err *err)
{
    weft_near_link *const near = link->near;
    char name[WEFT_LINK_NAME_BYTES + 16];
    /* The first id is of what goes from who dialled. */
    weft_comm_options options = {
        .n_ranks = 2, .rank = out ? 0 : 1, .ctas_max = 1, .name = name};
    (void)snprintf(name, sizeof name, "rows %s %s", out ? "to" : "from",
                   link->name);
    memcpy(options.id, near->ids[out == near->dials ? 0 : 1],
           sizeof options.id);
    return near->api->begin(weft_near_options_of(near->pool)->memory->device,
                            &options, out ? &near->out : &near->in, err);
}

/* Both comms are under way, or the reason is in err. */
static weft_status begin_comms(weft_link *link, weft_err *err)
{
    weft_near_link *const near = link->near;
    if (near->block < 0 && !weft_near_take(near))
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "near rows of more than %d links",
                         (int)weft_near_options_of(near->pool)->links_max);
    WEFT_TRY(begin_one(link, true, err));
    WEFT_TRY(begin_one(link, false, err));
    near->state = WEFT_NEAR_PENDING;
    near->until_ns =
        weft_clock_now_ns() + weft_near_options_of(near->pool)->ready_ns;
    return WEFT_OK;
}

static weft_status make_ids(weft_near_link *near, weft_err *err)
{
    WEFT_TRY(near->api->make_id(near->ids[0], err));
    return near->api->make_id(near->ids[1], err);
}

static void offer(weft_link *link)
{
    weft_near_link *const near = link->near;
    weft_err why = {0};
    if (!weft_near_take(near)) {
        stay(link, "no memory for the near rows of one more link");
        return;
    }
    if (make_ids(near, &why) != WEFT_OK) {
        stay(link, why.text);
        return;
    }
    say_terms(link, WEFT_SAY_OFFER);
    near->state = WEFT_NEAR_OFFERED;
    near->until_ns =
        weft_clock_now_ns() + weft_near_options_of(near->pool)->ready_ns;
    say(link);
}

/* -- hearing -------------------------------------------------------------- */

static void hear_offer(weft_link *link, const weft_near_said *said)
{
    weft_near_link *const near = link->near;
    weft_err why = {0};
    if (said->version != (uint32_t)near->api->version)
        (void)WEFT_FAIL(&why, WEFT_FAILED_PRECONDITION,
                        "NCCL %u where it dials and %d where it is answered",
                        (unsigned)said->version, (int)near->api->version);
    memcpy(near->ids, said->ids, sizeof near->ids);
    take_terms(near, said);
    if (why.status == WEFT_OK) (void)begin_comms(link, &why);
    if (why.status != WEFT_OK) {
        stay_and_say(link, WEFT_SAY_DECLINE, why.text);
        return;
    }
    say_terms(link, WEFT_SAY_AGREE);
    say(link);
}

static void hear_agree(weft_link *link, const weft_near_said *said)
{
    weft_err why = {0};
    take_terms(link->near, said);
    if (begin_comms(link, &why) != WEFT_OK)
        stay_and_say(link, WEFT_SAY_FAIL, why.text);
}

static weft_meeting out_of_place(weft_link *link, weft_near_say what)
{
    static const char *const names[] = {"nothing", "offer", "agree",
                                        "decline", "ready", "fail"};
    (void)weft_link_break(link, NULL, "says \"%s\" of near rows out of place",
                          names[what]);
    return WEFT_MEET_END;
}

static weft_meeting hear(weft_link *link, const weft_near_said *said)
{
    weft_near_link *const near = link->near;
    const weft_near_state state = near->state;
    const bool offered = state == WEFT_NEAR_OFFERED;
    const bool begun = state == WEFT_NEAR_PENDING || state == WEFT_NEAR_SAID;
    /* Who has given up may still hear what was said before that was known. */
    const bool over = state == WEFT_NEAR_OVER;
    switch (said->say) {
    case WEFT_SAY_OFFER:
        if (near->dials || state != WEFT_NEAR_IDLE) break;
        hear_offer(link, said);
        return WEFT_MEET_SKIP;
    case WEFT_SAY_AGREE:
        if (!near->dials || (!offered && !over)) break;
        if (offered) hear_agree(link, said);
        return WEFT_MEET_SKIP;
    case WEFT_SAY_DECLINE:
        if (!near->dials || (!offered && !over)) break;
        if (offered) stay(link, said->why);
        return WEFT_MEET_SKIP;
    case WEFT_SAY_READY:
        if ((!begun || near->peer_ready) && !over) break;
        near->peer_ready = true;
        return WEFT_MEET_SKIP;
    case WEFT_SAY_FAIL:
        /* Not after READY: near rows may be on their way to it. */
        if ((!begun || near->peer_ready) && !over) break;
        if (begun) stay(link, said->why);
        return WEFT_MEET_SKIP;
    case WEFT_SAY_NOTHING: break;
    }
    return out_of_place(link, said->say);
}

weft_meeting weft_near_meet(weft_link *link, const weft_frame *frame)
{
    weft_near_said said = {.say = WEFT_SAY_NOTHING};
    weft_err why = {0};
    if (weft_near_decode(frame, &said, &why) != WEFT_OK) {
        (void)weft_link_break(link, NULL, "%s", why.text);
        return WEFT_MEET_END;
    }
    if (link->near != NULL) return hear(link, &said);
    if (said.say != WEFT_SAY_OFFER) return out_of_place(link, said.say);
    said = (weft_near_said){.say = WEFT_SAY_DECLINE,
                            .why = "where it is answered rows are not near"};
    (void)send_said(link, &said);
    return WEFT_MEET_SKIP;
}

/* -- turns ---------------------------------------------------------------- */

static void look_at_comms(weft_link *link, uint64_t now_ns)
{
    weft_near_link *const near = link->near;
    weft_err why = {0};
    const weft_comm_state out = near->api->state(near->out, &why);
    const weft_comm_state in = out == WEFT_COMM_BROKEN
                                   ? WEFT_COMM_BROKEN
                                   : near->api->state(near->in, &why);
    if (out == WEFT_COMM_BROKEN || in == WEFT_COMM_BROKEN) {
        stay_and_say(link, WEFT_SAY_FAIL, why.text);
    } else if (out == WEFT_COMM_READY && in == WEFT_COMM_READY) {
        /* The other end may send near rows as soon as it has heard. */
        link->options.limits.near = true;
        near->state = WEFT_NEAR_SAID;
        near->due = (weft_near_said){.say = WEFT_SAY_READY};
        say(link);
    } else if (now_ns >= near->until_ns) {
        char text[WEFT_NEAR_WHY_BYTES];
        (void)snprintf(text, sizeof text,
                       "NCCL was not ready after %" PRIu64 " ms",
                       weft_near_options_of(near->pool)->ready_ns / 1000000U);
        stay_and_say(link, WEFT_SAY_FAIL, text);
    }
}

static void become_near(weft_link *link)
{
    weft_near_link *const near = link->near;
    near->state = WEFT_NEAR_READY;
    weft_near_counted(near->pool, 1);
    weft_log(WEFT_LOG_INFO, "link", "rows", "peer \"%s\" rows near nccl %d",
             link->name, (int)near->api->version);
}

weft_status weft_near_turn(weft_link *link, weft_err *err)
{
    weft_near_link *const near = link->near;
    say(link);
    if (near->due.say != WEFT_SAY_NOTHING) return WEFT_OK;
    switch (near->state) {
    case WEFT_NEAR_IDLE:
        if (near->dials) offer(link);
        break;
    case WEFT_NEAR_OFFERED:
        if (weft_clock_now_ns() >= near->until_ns)
            stay(link, "no answer to the offer of near rows");
        break;
    case WEFT_NEAR_PENDING: look_at_comms(link, weft_clock_now_ns()); break;
    case WEFT_NEAR_SAID:
        if (near->peer_ready) become_near(link);
        break;
    case WEFT_NEAR_READY: weft_near_reap(near); break;
    case WEFT_NEAR_OVER: break;
    }
    return weft_link_check_unbroken(link, err);
}

void weft_near_attach(weft_link *link, bool dials)
{
    weft_near *const pool = link->options.near;
    if (pool == NULL ||
        link->options.limits.body_bytes_max < WEFT_NEAR_BODY_BYTES_MAX)
        return;
    weft_near_link *const near = weft_mem_new(1, sizeof *near);
    if (near == NULL) return;
    near->pool = pool;
    near->api = weft_near_api(pool);
    near->dials = dials;
    near->block = -1;
    link->near = near;
}

void weft_near_detach(weft_link *link)
{
    weft_near_link *const near = link->near;
    if (near == NULL) return;
    drop_comms(near);
    weft_mem_free(near);
    link->near = NULL;
}
