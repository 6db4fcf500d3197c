/* The stack of open ActivationScopes of one thread. Owns its memory across the end of the thread; must not know what a scope is. */
#ifndef OM_SCOPES_H
#define OM_SCOPES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* `top` is read and written under the interpreter lock. References: one of the thread, one of each open scope; the thread drops its
 * own when it ends, which may be without the interpreter lock, and a scope that it left open may be closed later by another. */
typedef struct om_scopes {
    void *top;
    atomic_long references;
} om_scopes;

static _Thread_local om_scopes *om_thread_scopes;
static pthread_key_t om_scopes_key;
static pthread_once_t om_scopes_once = PTHREAD_ONCE_INIT;

static void om_scopes_drop(void *scopes) {
    om_scopes *s = scopes;
    if (atomic_fetch_sub(&s->references, 1) == 1) free(s);
}

static void om_scopes_thread_ends(void *scopes) {
    om_thread_scopes = NULL;
    om_scopes_drop(scopes);
}

static void om_scopes_make_key(void) { pthread_key_create(&om_scopes_key, om_scopes_thread_ends); }

/* This thread's stack with one more reference; NULL when memory is exhausted. */
static om_scopes *om_scopes_hold(void) {
    om_scopes *s = om_thread_scopes;
    if (!s) {
        pthread_once(&om_scopes_once, om_scopes_make_key);
        s = malloc(sizeof *s);
        if (!s) return NULL;
        s->top = NULL;
        atomic_init(&s->references, 1);
        if (pthread_setspecific(om_scopes_key, s)) {
            free(s);
            return NULL;
        }
        om_thread_scopes = s;
    }
    atomic_fetch_add(&s->references, 1);
    return s;
}

/* The innermost open scope of this thread, NULL if there is none. */
static inline void *om_scopes_top(void) { return om_thread_scopes ? om_thread_scopes->top : NULL; }

#endif
