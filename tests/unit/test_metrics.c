/* The text that Prometheus reads. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "node/base/mem.h"
#include "node/obs/metrics.h"
#include "tests/support/suite.h"

static weft_metrics *metrics;
static weft_buf text;

static void open_metrics(void)
{
    ck_assert_int_eq(weft_metrics_create(&metrics, NULL), WEFT_OK);
}

static void close_metrics(void)
{
    weft_metrics_destroy(metrics);
    weft_buf_deinit(&text);
}

/* The whole line stands in the text. */
static void ck_line(const char *line)
{
    weft_buf_clear(&text);
    ck_assert_int_eq(weft_metrics_print(metrics, &text, NULL), WEFT_OK);
    const size_t n = strlen(line);
    for (const char *at = text.data; at != NULL && *at != '\0';) {
        if (strncmp(at, line, n) == 0 && at[n] == '\n') return;
        at = strchr(at, '\n');
        if (at != NULL) at++;
    }
    ck_abort_msg("no line \"%s\" in\n%s", line, text.data);
}

START_TEST(every_name_is_there_from_the_start)
{
    static const char *const lines[] = {
        "weft_requests_total{code=\"OK\"} 0",
        "weft_requests_running 0",
        "weft_requests_waiting 0",
        "weft_tokens_total{kind=\"prompt\"} 0",
        "weft_tokens_total{kind=\"generated\"} 0",
        "weft_time_to_first_token_seconds_bucket{le=\"+Inf\"} 0",
        "weft_time_to_first_token_seconds_sum 0",
        "weft_time_to_first_token_seconds_count 0",
        "weft_time_between_tokens_seconds_count 0",
        "weft_step_seconds_count 0",
        "weft_queue_seconds_count 0",
        "weft_kv_bytes{kind=\"full\",state=\"used\"} 0",
        "weft_kv_bytes{kind=\"window\",state=\"cached\"} 0",
        "weft_kv_bytes{kind=\"index\",state=\"free\"} 0",
        "weft_kv_total_bytes 0",
        "weft_preemptions_total 0",
        "weft_epoch 0",
        "weft_members{role=\"layers\"} 0",
        "weft_expert_rows_total 0",
        "weft_exchange_seconds_count 0",
        "vllm:num_requests_running 0",
        "vllm:num_requests_waiting 0",
        "vllm:kv_cache_usage_perc 0",
    };
    open_metrics();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) ck_line(lines[i]);
    close_metrics();
}
END_TEST

/* Each family has its HELP and TYPE once, before its samples. */
START_TEST(families_are_whole)
{
    open_metrics();
    ck_assert_int_eq(weft_metrics_print(metrics, &text, NULL), WEFT_OK);
    char family[128] = "";
    for (char *at = text.data; *at != '\0';) {
        char *end = strchr(at, '\n');
        ck_assert_ptr_nonnull(end);
        *end = '\0';
        char name[128], type[32];
        if (sscanf(at, "# TYPE %127s %31s", name, type) == 2) {
            ck_assert_str_ne(name, family);
            (void)snprintf(family, sizeof family, "%s", name);
        } else if (at[0] != '#') {
            ck_assert_msg(strncmp(at, family, strlen(family)) == 0, "%s", at);
        }
        at = end + 1;
    }
    close_metrics();
}
END_TEST

START_TEST(values_are_told)
{
    open_metrics();
    weft_metrics_count_request(metrics, WEFT_OK);
    weft_metrics_count_request(metrics, WEFT_OK);
    weft_metrics_count_request(metrics, WEFT_DATA_LOSS);
    weft_metrics_count_request(metrics, (weft_status)99); /* no such */
    weft_metrics_add(metrics, WEFT_PROMPT_TOKENS, 12);
    weft_metrics_add(metrics, WEFT_PROMPT_TOKENS, 1);
    weft_metrics_set(metrics, WEFT_REQUESTS_RUNNING, 3);
    weft_metrics_set(metrics, WEFT_KV_TOTAL_BYTES, 400);
    weft_metrics_set_kv(metrics, WEFT_KV_FULL, WEFT_KV_USED, 70);
    weft_metrics_set_kv(metrics, WEFT_KV_WINDOW, WEFT_KV_USED, 30);
    weft_metrics_set_kv(metrics, WEFT_KV_WINDOW, WEFT_KV_CACHED, 50);
    ck_line("weft_requests_total{code=\"OK\"} 2");
    ck_line("weft_requests_total{code=\"DATA_LOSS\"} 1");
    ck_line("weft_tokens_total{kind=\"prompt\"} 13");
    ck_line("weft_requests_running 3");
    ck_line("vllm:num_requests_running 3");
    ck_line("weft_kv_bytes{kind=\"window\",state=\"cached\"} 50");
    ck_line("vllm:kv_cache_usage_perc 0.25");
    ck_assert_uint_eq(weft_metrics_counter(metrics, WEFT_PROMPT_TOKENS), 13);
    ck_assert_uint_eq(weft_metrics_gauge(metrics, WEFT_REQUESTS_RUNNING), 3);
    close_metrics();
}
END_TEST

START_TEST(buckets_are_cumulative_and_include_their_bound)
{
    open_metrics();
    weft_metrics_observe(metrics, WEFT_STEP_TIME, 0);
    weft_metrics_observe(metrics, WEFT_STEP_TIME, 500000);
    weft_metrics_observe(metrics, WEFT_STEP_TIME, 500001);
    weft_metrics_observe(metrics, WEFT_STEP_TIME, 2000000000);
    weft_metrics_observe(metrics, WEFT_STEP_TIME, 900000000000);
    ck_line("weft_step_seconds_bucket{le=\"0.0005\"} 2");
    ck_line("weft_step_seconds_bucket{le=\"0.001\"} 3");
    ck_line("weft_step_seconds_bucket{le=\"1\"} 3");
    ck_line("weft_step_seconds_bucket{le=\"2\"} 4");
    ck_line("weft_step_seconds_bucket{le=\"300\"} 4");
    ck_line("weft_step_seconds_bucket{le=\"+Inf\"} 5");
    ck_line("weft_step_seconds_count 5");
    ck_line("weft_step_seconds_sum 902.001");
    ck_line("weft_queue_seconds_count 0");
    close_metrics();
}
END_TEST

enum { N_THREADS = 4, N_EVENTS = 20000 };

static void *count(void *arg)
{
    (void)arg;
    for (int i = 0; i < N_EVENTS; i++) {
        weft_metrics_add(metrics, WEFT_GENERATED_TOKENS, 1);
        weft_metrics_observe(metrics, WEFT_QUEUE_TIME, 1000000);
    }
    return NULL;
}

START_TEST(nothing_is_lost_between_threads)
{
    pthread_t threads[N_THREADS];
    open_metrics();
    for (int i = 0; i < N_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, count, NULL), 0);
    ck_assert_int_eq(weft_metrics_print(metrics, &text, NULL), WEFT_OK);
    for (int i = 0; i < N_THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_line("weft_tokens_total{kind=\"generated\"} 80000");
    ck_line("weft_queue_seconds_count 80000");
    ck_line("weft_queue_seconds_sum 80");
    close_metrics();
}
END_TEST

START_TEST(want_of_memory_is_an_error)
{
    open_metrics();
    weft_mem_fail_after(0);
    ck_assert_int_eq(weft_metrics_print(metrics, &text, NULL),
                     WEFT_RESOURCE_EXHAUSTED);
    weft_mem_fail_after(-1);
    close_metrics();
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        every_name_is_there_from_the_start,
        families_are_whole,
        values_are_told,
        buckets_are_cumulative_and_include_their_bound,
        nothing_is_lost_between_threads,
        want_of_memory_is_an_error,
    };
    return WEFT_SUITE_RUN("metrics", tests);
}
