#include "shard/sched/queue.h"

#include "node/base/check.h"
#include "node/base/mem.h"

bool weft_queue_before(const weft_job *a, const weft_job *b)
{
    if (a->priority != b->priority) return a->priority > b->priority;
    if (a->age != b->age) return a->age < b->age;
    return a->handle < b->handle;
}

weft_status weft_queue_init(weft_queue *queue, int32_t capacity, weft_err *err)
{
    *queue = (weft_queue){.capacity = capacity};
    queue->jobs = weft_mem_new((size_t)capacity, sizeof *queue->jobs);
    if (queue->jobs == NULL)
        return WEFT_FAIL(err, WEFT_RESOURCE_EXHAUSTED,
                         "no memory for a queue of %d jobs", capacity);
    return WEFT_OK;
}

void weft_queue_deinit(weft_queue *queue)
{
    weft_mem_free(queue->jobs);
    *queue = (weft_queue){0};
}

static void swap(weft_queue *queue, int32_t a, int32_t b)
{
    const weft_job *const job = queue->jobs[a];
    queue->jobs[a] = queue->jobs[b];
    queue->jobs[b] = job;
}

static void sift_up(weft_queue *queue, int32_t i)
{
    while (i > 0) {
        const int32_t parent = (i - 1) / 2;
        if (!weft_queue_before(queue->jobs[i], queue->jobs[parent])) return;
        swap(queue, i, parent);
        i = parent;
    }
}

static void sift_down(weft_queue *queue, int32_t i)
{
    for (;;) {
        int32_t first = i;
        for (int32_t c = 2 * i + 1; c <= 2 * i + 2 && c < queue->n; c++)
            if (weft_queue_before(queue->jobs[c], queue->jobs[first]))
                first = c;
        if (first == i) return;
        swap(queue, i, first);
        i = first;
    }
}

void weft_queue_push(weft_queue *queue, const weft_job *job)
{
    WEFT_ASSERT(queue->n < queue->capacity);
    queue->jobs[queue->n] = job;
    sift_up(queue, queue->n++);
}

const weft_job *weft_queue_first(const weft_queue *queue)
{
    return queue->n > 0 ? queue->jobs[0] : NULL;
}

static void remove_at(weft_queue *queue, int32_t i)
{
    queue->n--;
    if (i == queue->n) return;
    queue->jobs[i] = queue->jobs[queue->n];
    sift_up(queue, i);
    sift_down(queue, i);
}

void weft_queue_pop(weft_queue *queue)
{
    WEFT_ASSERT(queue->n > 0);
    remove_at(queue, 0);
}

bool weft_queue_remove(weft_queue *queue, uint64_t handle)
{
    for (int32_t i = 0; i < queue->n; i++) {
        if (queue->jobs[i]->handle != handle) continue;
        remove_at(queue, i);
        return true;
    }
    return false;
}

void weft_queue_expire(weft_queue *queue, uint64_t now_ns,
                       void (*each)(void *arg, const weft_job *job), void *arg)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < queue->n; i++) {
        const weft_job *const job = queue->jobs[i];
        if (job->deadline_ns <= now_ns)
            each(arg, job);
        else
            queue->jobs[kept++] = job;
    }
    if (kept == queue->n) return;
    queue->n = kept;
    for (int32_t i = kept / 2 - 1; i >= 0; i--) sift_down(queue, i);
}
