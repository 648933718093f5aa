/* Two experts on three expert shards, one lead, two controllers, one store.
 *
 * As built: an epoch is planned, acknowledged by everybody whom it gives
 * something, committed by compare-and-swap while the controller key is the
 * committer's, switched to by the lead between steps, and retired when the lead
 * has said so. A plan of which a member has gone is rolled back. Questions and
 * answers are named by (epoch, attempt); they may be lost, come twice, and come
 * late. A shard may be killed and come again under its id, holding nothing.
 * The first controller may lose its key at any moment without knowing it, and
 * another takes over.
 *
 * Both experts move when shard 2 joins: expert 0 from shard 0 to 2, expert 1
 * from shard 1 to 0.
 *
 * Mutants: NO_FENCE (answers of an earlier attempt are taken), NO_EPOCH_CHECK
 * (a shard answers for whatever epoch), RETIRE_EARLY (old owners let go before
 * the lead has switched), FORGET_PLAN (a plan is never rolled back), NO_CAS
 * (the commit looks neither at the controller key nor at the plan), NO_RELOAD (a shard
 * that comes again acknowledges what its last process had loaded).
 */
#ifndef STEPS
#define STEPS 2
#endif
#ifndef MAXE
#define MAXE 4
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 5
#endif
#define NS 3
#define OWN(e, x) own[(e) * 2 + (x)]
#define INC(e, x) inc_of[(e) * 2 + (x)]
/* Whether the owner of x in epoch e is the process that it was. */
#define THERE(e, x) (alive[OWN(e, x)] && inc[OWN(e, x)] == INC(e, x))
#define WHOLE(e) (THERE(e, 0) && THERE(e, 1))
/* Whether epoch e gives shard s of incarnation i expert x. */
#define GIVES(e, x, s) (OWN(e, x) == s && INC(e, x) == inc[s])

mtype = { COMB, REJ };

/* The store. */
byte cur = 1, plan = 0, number = 1, retired = 0, switched = 1;
byte key = 0, terms = 0; /* controller key: the term that holds it; 0: nobody */
byte own[(MAXE + 1) * 2], inc_of[(MAXE + 1) * 2];
byte acked[NS]; /* the plan that the shard has acknowledged */

/* Shards: weights as bits by expert. */
bool alive[NS];
byte inc[NS], have[NS];
bool joined = false;

/* The lead. */
byte epoch = 1, steps = 0;

/* Questions: epoch, expert, attempt, incarnation. Answers: epoch, attempt. */
chan ask[NS] = [1] of { byte, byte, byte, byte };
chan answers = [2] of { mtype, byte, byte };

/* Lets go of what no epoch above the retired one gives it. */
inline let_go(s)
{
    d_step {
        f = 0;
        e = retired + 1;
        do
        :: e <= MAXE && e <= number ->
           if
           :: (e <= cur || e == plan) && GIVES(e, 0, s) -> f = f | 1
           :: else
           fi;
           if
           :: (e <= cur || e == plan) && GIVES(e, 1, s) -> f = f | 2
           :: else
           fi;
           e++
        :: else -> break
        od;
        /* Nothing goes that the lead's epoch uses. */
        assert(!(GIVES(epoch, 0, s) && (have[s] & 1) && !(f & 1)));
        assert(!(GIVES(epoch, 1, s) && (have[s] & 2) && !(f & 2)));
        have[s] = have[s] & f;
        e = 0; f = 0
    }
}

/* An answer may be lost (whatever fills the channel is), or come twice. */
inline SEND(m)
{
    if
    :: nfull(answers) -> answers ! m(e, a)
    :: skip
#ifdef TWICE
    :: nfull(answers) ->
       answers ! m(e, a);
       if :: nfull(answers) -> answers ! m(e, a) :: full(answers) fi
#endif
    fi
}

proctype Shard(byte s)
{
    byte e = 0, x = 0, a = 0, i = 0, f = 0;
end:
    do
    :: atomic { ask[s] ? e, x, a, i ->
       if
       :: !alive[s] || i != inc[s] -> skip /* its link broke with the process */
       :: else ->
#ifdef NO_EPOCH_CHECK
          assert(have[s] & (1 << x)); /* computes, whatever it holds */
          SEND(COMB)
#else
          if
          :: e <= retired || !(have[s] & (1 << x)) -> SEND(REJ)
          :: else -> SEND(COMB)
          fi
#endif
       fi;
       e = 0; x = 0; a = 0; i = 0 }
    :: atomic { alive[s] && plan != 0 && acked[s] != plan &&
       (GIVES(plan, 0, s) || GIVES(plan, 1, s)) ->
#ifdef NO_RELOAD
          if
          :: inc[s] == 0 ->
             if :: GIVES(plan, 0, s) -> have[s] = have[s] | 1 :: else fi;
             if :: GIVES(plan, 1, s) -> have[s] = have[s] | 2 :: else fi
          :: else
          fi;
#else
          if :: GIVES(plan, 0, s) -> have[s] = have[s] | 1 :: else fi;
          if :: GIVES(plan, 1, s) -> have[s] = have[s] | 2 :: else fi;
#endif
          acked[s] = plan }
    :: atomic { alive[s] && retired > 0 && have[s] != 0 &&
       !(GIVES(cur, 0, s) && (have[s] & 1)) &&
       !(GIVES(cur, 1, s) && (have[s] & 2)) -> let_go(s) }
    od
}

/* Where the experts go: who has one keeps it, but for the join. */
inline choose(n)
{
    x = 0;
    do
    :: x < 2 ->
       if
       :: joined && x == 0 && alive[2] -> t = 2
       :: joined && x == 1 && alive[0] -> t = 0
       :: !(joined && ((x == 0 && alive[2]) || (x == 1 && alive[0]))) ->
          if
          :: THERE(cur, x) -> t = OWN(cur, x)
          :: else ->
             if :: alive[0] -> t = 0 :: else -> t = 1 fi
          fi
       fi;
       OWN(n, x) = t; INC(n, x) = inc[t]; x++
    :: else -> break
    od;
    x = 0; t = 0
}

/* Whether a placement made at this moment would be another than the committed
 * one. */
#define WANT0 ((joined && alive[2]) -> (OWN(cur, 0) != 2 || INC(cur, 0) != inc[2]) : !THERE(cur, 0))
#define WANT1 ((joined && alive[0]) -> (OWN(cur, 1) != 0 || INC(cur, 1) != inc[0]) : !THERE(cur, 1))

proctype Controller(byte who)
{
    byte mine = 0, x = 0, t = 0, p = 0, c = 0;
end:
    do
    :: atomic { key == 0 && terms < 2 -> terms++; key = terms; mine = key }
    :: atomic { mine != 0 && key == mine && plan == 0 && number < MAXE &&
                (WANT0 || WANT1) ->
          number++; choose(number);
          plan = number }
    /* What is decided and what is written lie apart: the key may be lost in
     * between. */
    :: atomic { mine != 0 && plan != 0 &&
#ifndef NO_CAS
                key == mine &&
#endif
                WHOLE(plan) && acked[OWN(plan, 0)] == plan &&
                acked[OWN(plan, 1)] == plan -> p = plan; c = cur };
       atomic {
          if
#ifdef NO_CAS
          :: true ->
#else
          :: key == mine && cur == c && plan == p ->
#endif
             assert(p > cur); cur = p;
             /* Whoever is there holds what it is given. */
             assert(!THERE(p, 0) || (have[OWN(p, 0)] & 1));
             assert(!THERE(p, 1) || (have[OWN(p, 1)] & 2));
             if :: plan == p -> plan = 0 :: else fi
#ifndef NO_CAS
          :: else
#endif
          fi;
          p = 0; c = 0 }
#ifndef FORGET_PLAN
    :: atomic { mine != 0 && key == mine && plan != 0 && !WHOLE(plan) ->
          plan = 0 }
#endif
    :: atomic { mine != 0 && key == mine && retired < cur - 1 &&
#ifndef RETIRE_EARLY
                switched == cur &&
#endif
                true -> retired = cur - 1 }
    :: atomic { mine != 0 && key != mine -> mine = 0 } /* finds out */
    od
}

active proctype Lead()
{
    byte tag = 0, x = 0, e, g;
    mtype m;
    do
    :: steps == STEPS && epoch == cur -> break
    :: atomic { epoch < cur && WHOLE(cur) -> epoch = cur }; /* between steps */
       switched = epoch
    :: steps < STEPS && WHOLE(epoch) && tag < ATTEMPTS ->
       x = 0;
       do
       :: x < 2 ->
          atomic { tag++;
          ask[OWN(epoch, x)] ! epoch, x, tag, INC(epoch, x) };
#ifdef TWICE
          if
          :: nfull(ask[OWN(epoch, x)]) ->
             ask[OWN(epoch, x)] ! epoch, x, tag, INC(epoch, x)
          :: skip
          fi;
#endif
wait:     if
          :: atomic { answers ? m, e, g ->
             if
#ifndef NO_FENCE
             :: !(e == epoch && g == tag) -> goto wait /* late */
#endif
             :: else ->
                if
                :: m == REJ -> goto again
                :: else -> assert(e == epoch && g == tag); x++
                fi
             fi }
          :: tag < ATTEMPTS -> goto again   /* silence, or the peer broke */
          :: tag >= ATTEMPTS && !THERE(epoch, x) -> goto again
          fi
       :: else -> break
       od;
       steps++;
again: skip
    :: steps < STEPS && tag >= ATTEMPTS -> break /* bounded: enough is seen */
    od;
    /* Without work it still takes what is committed. */
end:
    do
    :: atomic { epoch < cur && WHOLE(cur) -> epoch = cur }; switched = epoch
    :: answers ? m, e, g
    od
}

/* What happens to them, each once at most. */
active proctype Faults()
{
    byte k = 0;
    bool join = false, kill = false, depose = false;
end:
    do
    :: !join -> atomic { join = true; joined = true; alive[2] = true }
#ifdef KILL
    :: atomic { !kill ->
          kill = true;
          if :: k = 0 :: k = 1 :: k = 2 fi;
          alive[k] = false; have[k] = 0 };
       if
       :: atomic { alive[k] = true; inc[k] = 1 } /* comes again */
       :: skip
       fi
#endif
#ifdef DEPOSE
    :: !depose && key != 0 -> atomic { depose = true; key = 0 }
#endif
    od
}

/* When nothing more can happen, nothing is left half done. */
active proctype Quiet()
{
end:
    do
    :: timeout ->
       assert(plan == 0 || (number == MAXE && !WHOLE(plan)));
       assert(!(WHOLE(cur)) || epoch == cur || steps < STEPS);
       break
    od
}

init {
    atomic {
        OWN(1, 0) = 0; OWN(1, 1) = 1;
        alive[0] = true; alive[1] = true;
        have[0] = 1; have[1] = 2;
        run Shard(0); run Shard(1); run Shard(2);
        run Controller(0); run Controller(1)
    }
}
