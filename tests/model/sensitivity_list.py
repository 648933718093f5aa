"""The mistakes of sensitivity.py: (name, [(file, text, mistaken text[, times
that the text is there])]). Names of MODEL follow the table of model-spec 8.5;
ENGINE has what the router relies on, SPLIT what a model in pieces does."""

ATTENTION = 'shard/model/attention.c'
FFN = 'shard/model/ffn.c'
FORWARD = 'shard/model/forward.c'
ROPE = 'shard/model/config_rope.c'
LAYERS = 'shard/model/config_layers.c'
MOE = 'shard/model/config_moe.c'
CONFIG = 'shard/model/config.c'
FIELDS = 'shard/model/config_fields.c'
LOADER = 'shard/load/loader.c'
WALK = 'shard/load/walk.c'
WEIGHTS = 'shard/load/weights.c'
PARTITION = 'shard/model/partition.c'
KV = 'shard/kv/kv.c'
STORE = 'shard/expert/store.c'
ROUTE = 'kernels/cpu/route.c'
INDEX = 'kernels/cpu/index.inc'
SELECT = 'kernels/cpu/select.c'
GEMM = 'kernels/cpu/gemm.inc'
TABLE = 'shard/kv/table.c'
STEP = 'shard/step/step.c'
ATTEMPT = 'shard/step/attempt.c'
LOOP = 'shard/step/engine.c'
SCHED = 'shard/sched/sched.c'
PLAN = 'shard/sched/plan.c'
SAMPLE = 'shard/sample/sample.c'

INV_FREQ = '.inv_freq = f->inv_freq[k],'
MAIN_PAIRS = '.interleave = c->rope_interleave,'
INDEX_PAIRS = '.interleave = c->index_rope_interleave,'
KV_RESCALE = 'rescale(c, g->kv_lora_rank)'
SCALE = '.scale = g->softmax_scale,'
FIRST = '.first = cut && p >= c->window ? p - c->window + 1 : 0,'
CUT = 'const bool cut = k == WEFT_WINDOW && c->window > 0;'
K_NORM = '''    if (w->k_rope_norm != NULL)
        norm_latent(f, k_rope, w->k_rope_norm, width, n_rows,
                    g->qk_rope_head_dim, 1.0F);
'''
MAIN_ROPE = '''    f->ops->rope(f->threads, &rope);
    const weft_store store = {
        .to = weft_kv_store_rows'''
LAYER_NORM = 'f->ops->layer_norm(f->threads, &norm);'
INDEX_ROPE_Q = '''    rope_index(f, f->index_q, (int64_t)c->index_n_head * dim, n_rows,
               c->index_n_head);
'''
INDEX_ROPE_K = '    rope_index(f, f->index_k, dim, n_rows, 1);\n'
INDEX_READ = '''    WEFT_TRY(refuse_sharing(fields, err));
    if (config->dsa &&
        config->index_head_dim'''
ROW_KEYS = '        row->n_keys = f->index_n_keys[r];\n'
OPEN = 'taken[i] = !open[i / size];'
CHOICE = '            const float t = choice_of(op, scores, i);\n' \
         '            if (best >= 0'


def with_window_on_full(text):
    return text + '''        while (row->n_keys > 1 &&
               row->keys[0] <= row->position - c->window) {
            row->keys++;
            row->n_keys--;
        }
'''


MODEL = [
    # Rotation.
    ('swap the two thetas', [
        (FORWARD, INV_FREQ,
         '.inv_freq = f->inv_freq[c->n_kind[1 - k] > 0 ? 1 - k : k],')]),
    ('full theta everywhere', [
        (FORWARD, INV_FREQ, '.inv_freq = f->inv_freq[WEFT_FULL],')]),
    ('half-split main rotation', [
        (ATTENTION, MAIN_PAIRS, '.interleave = false,', 2)]),
    ('rope part at the head of q', [
        (ATTENTION, '.x = q + (int64_t)h * head,',
         '.x = q + (int64_t)h * head + g->qk_rope_head_dim,'),
        (ATTENTION, '.x = q + g->qk_nope_head_dim,', '.x = q,')]),
    ('keys rotated twice', [
        (ATTENTION, MAIN_ROPE, MAIN_ROPE.replace(
            '    f->ops->rope(f->threads, &rope);\n',
            '    f->ops->rope(f->threads, &rope);\n' * 2))]),
    # Latents.
    ('no q rescale', [(ATTENTION, 'rescale(c, g->q_lora_rank)', '1.0F')]),
    ('no kv rescale', [(ATTENTION, KV_RESCALE, '1.0F')]),
    ('kv rescale with full rank on windows', [
        (ATTENTION, KV_RESCALE,
         'rescale(c, c->geometry[WEFT_FULL].kv_lora_rank)')]),
    ('no k_rope norm', [(ATTENTION, K_NORM, '')]),
    ('k_rope norm after the rotation', [
        (ATTENTION, K_NORM, ''),
        (ATTENTION, MAIN_ROPE, MAIN_ROPE.replace(
            '    const weft_store', K_NORM + '    const weft_store'))]),
    ('eps 1e-6 in norms of latents', [
        (ATTENTION, '.eps = f->config->rms_norm_eps,', '.eps = 1e-6F,')]),
    ('eps 1e-5 in layer norms', [
        (FORWARD, '.eps = f->config->rms_norm_eps,', '.eps = 1e-5F,')]),
    ('value rows first in kv_b', [
        (LOADER, 'read_rows(loader, b->part, b->source, first, nope,',
         'read_rows(loader, b->part, b->source, first + v, nope,'),
        (LOADER, 'read_rows(loader, b->part, b->source, first + nope, v,',
         'read_rows(loader, b->part, b->source, first, v,')]),
    # Scale, gate.
    ('full softmax scale on windows', [
        (ATTENTION, SCALE,
         '.scale = c->geometry[WEFT_FULL].softmax_scale,')]),
    ('softmax scale from nope only', [
        (ATTENTION, SCALE,
         '.scale = 1.0F / sqrtf((float)g->qk_nope_head_dim),')]),
    ('softmax scale from the latent width', [
        (ATTENTION, SCALE, '.scale = 1.0F / sqrtf((float)width),')]),
    ('no gate', [
        (ATTENTION, 'if (g->gate != WEFT_GATE_NONE) {', 'if (false) {')]),
    ('gate from the residual', [
        (ATTENTION, 'weft_forward_product(f, &w->g, f->x, f->gate, n_rows);',
         'weft_forward_product(f, &w->g, f->h, f->gate, n_rows);')]),
    ('elementwise gate taken as headwise', [
        (ATTENTION, '.head_width = headwise ? g->v_head_dim : 1,',
         '.head_width = headwise ? g->v_head_dim : 2,'),
        (ATTENTION, '.n_head = headwise ? g->n_head : width,',
         '.n_head = headwise ? g->n_head : width / 2,')]),
    # Window.
    ('window + 1', [
        (FORWARD, FIRST,
         '.first = cut && p > c->window ? p - c->window : 0,')]),
    ('window - 1', [
        (FORWARD, FIRST,
         '.first = cut && p + 1 >= c->window && p > 0 && c->window > 1 '
         '? p - c->window + 2 : 0,')]),
    ('window ignored', [(FORWARD, CUT, 'const bool cut = false;')]),
    ('window on full layers too', [
        (FORWARD, CUT, 'const bool cut = c->window > 0;'),
        (ATTENTION, ROW_KEYS, with_window_on_full(ROW_KEYS))]),
    ('window pages given back a token early', [
        (TABLE, 'next - config->window + 1', 'next - config->window + 2')]),
    # Indexer.
    ('indexer ignored', [
        (ATTENTION, 'if (w->index_q.data != NULL) select_keys(',
         'if (false) select_keys(')]),
    ('top-k + 1', [
        (LAYERS, INDEX_READ, '    config->index_topk += 1;\n' + INDEX_READ)]),
    ('top-k - 1', [
        (LAYERS, INDEX_READ, '    config->index_topk -= config->index_topk > 1;\n'
         + INDEX_READ)]),
    ('half-split indexer', [
        (ATTENTION, INDEX_PAIRS, '.interleave = false,')]),
    ('interleaved indexer everywhere', [
        (ATTENTION, INDEX_PAIRS, '.interleave = true,')]),
    ('indexer rotates the tail', [
        (ATTENTION, '''        .x = x,
        .y = x,
        .cos = f->cos[WEFT_FULL],''',
         '''        .x = x + c->index_head_dim -
             c->geometry[WEFT_FULL].qk_rope_head_dim,
        .y = x + c->index_head_dim -
             c->geometry[WEFT_FULL].qk_rope_head_dim,
        .cos = f->cos[WEFT_FULL],''')]),
    ('indexer with the window theta', [
        (ATTENTION, '''        .cos = f->cos[WEFT_FULL],
        .sin = f->sin[WEFT_FULL],''',
         '''        .cos = f->cos[c->n_kind[1] > 0],
        .sin = f->sin[c->n_kind[1] > 0],''')]),
    ('indexer not rotated', [
        (ATTENTION, INDEX_ROPE_Q, ''), (ATTENTION, INDEX_ROPE_K, '')]),
    ('indexer keys not rotated', [(ATTENTION, INDEX_ROPE_K, '')]),
    ('RMS norm in the indexer', [
        (ATTENTION, LAYER_NORM,
         '''const weft_rms_norm rms = {.x = norm.x, .w = norm.w, .y = norm.y,
                               .x_stride = dim, .y_stride = dim,
                               .n_row = n_rows, .width = dim,
                               .eps = norm.eps, .scale = 1.0F};
    f->ops->rms_norm(f->threads, &rms);''')]),
    ('indexer k_norm bias dropped', [
        (ATTENTION, '.b = w->index_k_norm_b,', '.b = (float[4096]){0},')]),
    ('indexer eps from rms_norm_eps', [
        (ATTENTION, '.eps = 1e-6F,', '.eps = c->rms_norm_eps,')]),
    ('indexer eps 1e-5', [(ATTENTION, '.eps = 1e-6F,', '.eps = 1e-5F,')]),
    ('no ReLU', [
        (INDEX, 'vf_max(vf_zero(), vf_load(dot[i]))', 'vf_load(dot[i])')]),
    ('absolute indexer weights', [
        (INDEX, 'vf_set1(w[h + i])', 'vf_set1(fabsf(w[h + i]))')]),
    ('ties of scores go to the highest position', [
        (SELECT, 'taken += (key > threshold) | (tie & (ties > 0));',
         'int32_t later = 0;\n        for (int32_t j = i + 1; j < n; j++)'
         ' later += key_of(scores[j]) == threshold;\n'
         '        taken += (key > threshold) | (tie & (later < ties));'),
        (SELECT, '        ties -= tie;\n', '')]),
    ('negative scores lose their sign', [
        (SELECT, 'return (bits ^ (sign | 0x80000000u)) & number;',
         'return (bits | (sign & 0x80000000u)) & number;')]),
    ('tail layout ignored', [
        (WALK, 'c->index_rope_tail ? g->qk_rope_head_dim : 0', '0')]),
    ('tail layout not permuted in the norm', [
        (WALK, '''"%sindexer.k_norm.weight", prefix), head,
        part.tail,''', '''"%sindexer.k_norm.weight", prefix), head,
        0,''')]),
    # Experts.
    ('softmax router', [
        (FFN, '.scoring = c->scoring,', '.scoring = WEFT_SOFTMAX,')]),
    ('sigmoid router everywhere', [
        (FFN, '.scoring = c->scoring,', '.scoring = WEFT_SIGMOID,')]),
    ('correction bias ignored', [
        (FFN, '.bias = w->router_bias,', '.bias = NULL,')]),
    ('biased routing weights', [
        (ROUTE, 'w[k] = scores[best];',
         'w[k] = choice_of(op, scores, best);')]),
    ('no top-k normalisation', [
        (FFN, '.norm_topk = c->norm_topk,', '.norm_topk = false,')]),
    ('top-k always normalised', [
        (FFN, '.norm_topk = c->norm_topk,', '.norm_topk = true,')]),
    ('no routed scale', [
        (FFN, '.scale = skip_scale ? 1.0F : c->routed_scaling,',
         '.scale = 1.0F,')]),
    ('no dynamic scale', [
        (FFN, '.dynamic_rsf = c->dynamic_rsf,', '.dynamic_rsf = false,')]),
    ('no shared expert', [
        (FFN, '.shared = shared ? f->shared_out : NULL,',
         '.shared = NULL,')]),
    ('shared expert scaled', [
        (MOE, 'config->shared_intermediate_size = width * n_shared;',
         'config->shared_intermediate_size = width;')]),
    ('one dense layer too many', [
        (MOE, 'i >= first && i % freq == 0', 'i > first && i % freq == 0')]),
    ('frequency counted from the first expert layer', [
        (MOE, 'i % freq == 0', '(i - first) % freq == 0')]),
    ('dropped groups score 0.0', [
        (ROUTE, OPEN, 'taken[i] = false;'),
        (ROUTE, CHOICE, CHOICE.replace(
            'choice_of(op, scores, i)',
            'open[i / size] ? choice_of(op, scores, i) : 0.0f'))]),
    ('no groups', [(ROUTE, OPEN, 'taken[i] = false;')]),
    ('group score of the best only', [
        (ROUTE, 'if (op->group_score == WEFT_GROUP_MAX || size == 1)',
         'if (true)')]),
    ('group score of two for V2 as well', [
        (ROUTE, 'if (op->group_score == WEFT_GROUP_MAX || size == 1)',
         'if (size == 1)')]),
    ('ties of experts go to the highest', [
        (ROUTE, 'if (best >= 0 && !(t > t_best)) continue;',
         'if (best >= 0 && !(t >= t_best)) continue;')]),
    ('gate and up of packed experts exchanged', [
        (WALK, '''                      .n_out = width};
    WEFT_TRY(weft_loader_matrix(loader, &part, &out->gate, err));''',
         '''                      .n_out = width};
    WEFT_TRY(weft_loader_matrix(loader, &part, &out->up, err));'''),
        (WALK, '''    part.row = width;
    WEFT_TRY(weft_loader_matrix(loader, &part, &out->up, err));''',
         '''    part.row = width;
    WEFT_TRY(weft_loader_matrix(loader, &part, &out->gate, err));''')]),
    # YaRN.
    ('no YaRN', [
        (ROPE, 'const bool scaled = kind == WEFT_FULL && yarn->on;',
         'const bool scaled = false;')]),
    ('YaRN from 4096 positions', [
        (ROPE, 'log(yarn->original_context / (n_turns * two_pi))',
         'log(4096.0 / (n_turns * two_pi))')]),
    ('no squared mscale', [(ROPE, 'scale *= m * m;', '(void)m;')]),
    ('mscale not squared', [(ROPE, 'scale *= m * m;', 'scale *= m;')]),
    ('no factor of cosine and sine', [
        (FORWARD, '.factor = c->yarn.on ? c->yarn.cos_sin_factor : 1.0F,',
         '.factor = 1.0F,')]),
    # FP8, tensors.
    ('FP8 scale of the wrong column block', [
        (GEMM, 'first / WEFT_SCALE_BLOCK]', '0]')]),
    ('FP8 scale of the wrong row block', [
        (GEMM, '(int64_t)(p->out / WEFT_SCALE_BLOCK) * across', '0')]),
    ('FP8 scale of kv_b from its first block', [
        (LOADER, '((row + r) / WEFT_SCALE_BLOCK)', '(r / WEFT_SCALE_BLOCK)')]),
    # Cache.
    ('latent cached before its rescale', [
        (ATTENTION, '''                rescale(c, g->kv_lora_rank));
    if (w->k_rope_norm''', '''                1.0F);
    if (w->k_rope_norm''')]),
    ('residual not added after attention', [
        (FORWARD, '''    weft_forward_attention(f, l, n);
    add_rows(f, n);
''', '''    weft_forward_attention(f, l, n);
    if (l != 1) add_rows(f, n);
''')]),
    ('final norm left out', [
        (FORWARD, '.w = f->weights->final_norm,',
         '.w = f->weights->layers[0].input_norm,')]),
    # Steps and spellings.
    ('all rows of a step read the first piece', [
        (ATTEMPT, 'l->pages[k][n] = p->table->offsets[k];',
         'l->pages[k][n] = e->plan->pieces[0].table->offsets[k];')]),
    ('positions count from the chunk', [
        (ATTEMPT, 'l->positions[n] = p->first + r;',
         'l->positions[n] = r;')]),
    ('LayerNorm taken as RMSNorm', [
        (CONFIG, '{"RMSNorm", NULL}', '{"RMSNorm", "LayerNorm", NULL}')]),
    ('unknown keys pass', [
        (FIELDS, 'return weft_fields_refuse(fields, key, value, '
         '"unknown key", err);', 'reason = "unknown";')]),
    ('alias of the window not known', [
        (LAYERS, '''                                  "sliding_window",
''', '''                                  NULL,
''')]),
    ('attention biases pass', [
        (CONFIG, '{"attention_bias", "mlp_bias"}',
         '{"mlp_bias", "mlp_bias"}')]),
]

RELEASE = '''    release_below(table, spaces, WEFT_WINDOW, end, before, arg);
'''

ENGINE = [
    # Ends.
    ('a job that failed is not forgotten', [
        (STEP, '    (void)weft_sched_cancel(e->sched, handle);\n', '')]),
    ('a job that failed goes on telling', [
        (STEP, '    e->failed[piece] = true;\n', '')]),
    ('the cancel of an ended job tells once more', [
        (LOOP, '!= WEFT_OK) return;\n        event.status = WEFT_CANCELLED;',
         '!= WEFT_OK) event.status = WEFT_OK;\n'
         '        event.status = WEFT_CANCELLED;')]),
    ('a cancelled job does not tell', [
        (LOOP, '        event.status = WEFT_CANCELLED;\n', '        return;\n')]),
    ('a cancel does not reach those that wait', [
        (SCHED, """    return weft_queue_remove(&sched->waiting, handle) ? WEFT_OK
                                                      : WEFT_NOT_FOUND;""",
         '    return WEFT_NOT_FOUND;')]),
    ('a refused job does not tell', [
        (LOOP, 'if (event.status == WEFT_OK) return;', 'return;')]),
    ('a refusal without its text', [
        (LOOP, '(int)sizeof event.text - 1, err.text);',
         '0, err.text);')]),
    ('no deadline ends a job', [
        (PLAN, '    expire(sched, now_ns);\n', '    (void)expire;\n')]),
    ('ends of the plan are not told', [
        (STEP, '    tell_ends(e, plan);\n', '    (void)tell_ends;\n')]),
    ('stop ids ignored', [
        (SCHED, 'if (job->stop_ids[i] == token) return true;',
         'if (job->stop_ids[i] == token) return false;')]),
    ('a stop id is not told', [
        (STEP, """    event.finish = weft_sched_commit(e->sched, p->slot, event.token);
""", """    event.finish = weft_sched_commit(e->sched, p->slot, event.token);
    if (event.finish == WEFT_FINISH_STOP) event.kind = WEFT_EVENT_END;
""")]),
    ('one token too many', [
        (SCHED, 'generated >= job->max_tokens ||',
         'generated > job->max_tokens ||')]),
    ('longer than the context', [
        (SCHED, 'if (job->n_tokens > sched->limits.max_context)',
         'if (false)')]),
    ('what never fits is taken', [
        (SCHED, '    WEFT_TRY(check_could(sched, job, err));\n',
         '    (void)check_could;\n')]),
    ('the queue has no limit', [
        (SCHED, 'back ? sched->waiting.capacity : sched->limits.max_waiting;',
         'back ? sched->waiting.capacity : sched->waiting.capacity;')]),
    ('a job without memory tells of a deadline', [
        (STEP, 'if (end->status == WEFT_DEADLINE_EXCEEDED) text',
         'if (end->status != WEFT_OK) text'),
        (STEP, 'if (end->status == WEFT_RESOURCE_EXHAUSTED)',
         'if (false)')]),
    ('NaN passes', [
        (SAMPLE, 'if (stat->nan || stat->max == INFINITY)', 'if (false)'),
        (SAMPLE, 'if (stat->nan || isinf(stat->max))', 'if (false)')]),
    ('started is told with every piece', [
        (PLAN, '.started = seq->computed == 0,', '.started = true,')]),
    # Events.
    ('an event without room is lost', [
        (LOOP, '    while (!e->sink.take(e->sink.arg, event)) {',
         '    if (!e->sink.take(e->sink.arg, event)) {\n'
         '        weft_mem_free(event->top);\n        return;')]),
    ('an event is sent twice', [
        (LOOP, '        (void)nanosleep(&pause, NULL);\n    }\n',
         '        (void)nanosleep(&pause, NULL);\n    }\n'
         '    if (event->n_top == 0) (void)e->sink.take(e->sink.arg, event);\n'
         )]),
    ('a stop while events wait leaks', [
        (LOOP, '            weft_mem_free(event->top);\n', '')]),
    ('a stop waits for room for ever', [
        (LOOP, 'if (atomic_load(&e->stop)) {', 'if (false) {')]),
    ('jobs in flight are not cleared', [
        (LOOP, '    weft_sched_clear(e->sched);\n', '')]),
    # Logprobs.
    ('the prompt token itself instead of the next', [
        (STEP, '.token = p->job->tokens[position + 1],',
         '.token = p->job->tokens[position],')]),
    ('one prompt logprob too few', [
        (STEP, 'position + 1 < job->n_prompt)',
         'position + 2 < job->n_prompt)')]),
    ('prompt rows of a chunk but the last left out', [
        (ATTEMPT, 'if (!all && !(last && p->last_of_prompt)) continue;',
         'if (!last || (!all && !p->last_of_prompt)) continue;')]),
    ('logprobs without their sum', [
        (SAMPLE, 'event_io->logprob = logits[token] - stat->log_sum_exp;',
         'event_io->logprob = logits[token] - stat->max;')]),
    ('top of another length', [
        (STEP, 'job->logprobs, event, err));',
         'job->logprobs + 1, event, err));')]),
    # Pages, order of work.
    ('window pages are kept', [
        (TABLE, RELEASE, '    (void)end, (void)spaces, (void)before, (void)arg;\n'
         )]),
    ('decodes wait for prefill', [
        (PLAN, """    plan_decodes(sched);
    plan_chunks(sched);
""", """    plan_chunks(sched);
    if (sched->n_pieces == 0) plan_decodes(sched);
""")]),
    ('a preempted job starts with its prompt alone', [
        (PLAN, """    seq->n_tokens = job->n_tokens;
    seq->goal = job->n_tokens;""", """    seq->n_tokens = job->n_prompt;
    seq->goal = job->n_prompt;""")]),
    ('index keys beyond the first 1024 are not scored', [
        (INDEX, 'const int32_t n = op->rows[i].position / INDEX_BLOCK + 1;',
         'const int32_t n = op->rows[i].position < 1024 '
         '? op->rows[i].position / INDEX_BLOCK + 1 : 4;')]),
]

SPLIT = [
    # Experts elsewhere.
    ('pairs in the reverse order', [
        (FORWARD, 'f->row_of[i] = i;',
         'f->row_of[i] = options->max_rows * config->top_k - 1 - i;')]),
    ('slots of a row swapped', [
        (FORWARD, 'f->row_of[i] = i;', 'f->row_of[i] = i ^ 1;')]),
    ('rows written while their experts are away', [
        (FFN, """    const int32_t n = list_shared_in(f, w, 0, n_rows);
    if""", """    const int32_t n = list_shared_in(f, w, 0, n_rows);
    f->x[0] += 1.0F;
    if""")]),
    ('the shared expert after the answers', [
        (FFN, '    experts->dispatch(experts->arg, &f->call);\n', ''),
        (FFN, '    WEFT_TRY(experts->collect(experts->arg, &f->call, err));\n',
         '    experts->dispatch(experts->arg, &f->call);\n'
         '    WEFT_TRY(experts->collect(experts->arg, &f->call, err));\n')]),
    # Two micro-batches.
    ('b begins a layer when a has ended it', [
        (FORWARD, """        begin_layer(b, l);
        st = end_layer(a, l, err);""", """        st = end_layer(a, l, err);
        if (st == WEFT_OK) begin_layer(b, l);""")]),
    ('b before a', [
        (FORWARD, """        begin_layer(a, l);
        if (l > c->first_layer) st = end_layer(b, l - 1, err);
        if (st != WEFT_OK) break;
        begin_layer(b, l);""", """        if (l > c->first_layer) st = end_layer(b, l - 1, err);
        if (st != WEFT_OK) break;
        begin_layer(b, l);
        begin_layer(a, l);""")]),
    ('a failed step leaves questions behind', [
        (FORWARD, '        abandon(a);\n        abandon(b);\n', '')]),
    ('a failed step leaves those of b behind', [
        (FORWARD, '        abandon(b);\n', '')]),
    # Stages.
    ('hidden rows of another stage not taken', [
        (FORWARD, 'if (batch->hidden != NULL) {',
         'if (batch->hidden != NULL && f->weights->embed != NULL) {')]),
    ('logits of the own rows', [
        (FORWARD, 'norm_final(f, hidden[i], i)',
         'norm_final(f, f->h + (int64_t)i * f->config->hidden_size, i)')]),
    ('cache rows of the layers of other stages', [
        (KV, 'if (l < config->first_layer || l >= config->end_layer) continue;',
         'if (l >= config->end_layer) continue;')]),
    ('the head counted for the last stage', [
        (PARTITION, '(first == 0 ? c->head : 0)',
         '(end == c->n_layer ? c->head : 0)')]),
    ('shared experts not counted', [
        (PARTITION, '3 * (int64_t)c->shared_intermediate_size', '0')]),
    ('indexers not counted', [
        (PARTITION, 'kind == WEFT_FULL && c->dsa', 'false')]),
    ('any cut whose largest stage is small', [
        (PARTITION, 'if (least <= best) continue;',
         'if (best != IMPOSSIBLE) continue;')]),
    ('kinds counted over all stages', [
        (PARTITION,
         'for (int32_t k = 0; k < WEFT_KINDS; k++) c.n_kind[k] = 0;', '')]),
    # Parts of the weights.
    ('routed experts though they are elsewhere', [
        (WALK, 'if (loader->part.experts)', 'if (true)')]),
    ('head though it is elsewhere', [
        (WALK, 'if (!part->head) return WEFT_OK;', '')]),
    ('what was used once is used for ever', [
        (WEIGHTS, 'cp->set.tensors[i]->used = false;', '(void)0;')]),
    ('an expert may write past its block', [
        (WEIGHTS, 'if (bytes < (int64_t)sizes.used)', 'if (false)')]),
    # The store of experts.
    ('an expert is let go while it serves', [
        (STORE, '    wait_until_quiet(store);\n    give_back',
         '    give_back')]),
    ('who drops is not woken', [
        (STORE, '        weft_futex_wake(&store->passes, 1);',
         '        (void)0;')]),
    ('no pass between two batches', [
        (STORE, 'now + (was_away == is_away ? 2 : 1)',
         'now + (was_away == is_away ? 0 : 1)')]),
    ('more than the budget', [
        (STORE, 'if (total > 0 && need > total - used)', 'if (false)')]),
    ('a dropped expert still counts', [
        (STORE, 'atomic_fetch_sub(&store->used_bytes',
         'atomic_fetch_add(&store->used_bytes')]),
]
