/* The best throughput of an attempt: that of its fastest stretch of STRETCH_STEPS consecutive steps.
 *
 * A row of several steps is as many steps of its mean length and samples. The last steps form a stretch together with as many
 * before them as they lack, so the rate of the whole is never above the best. */
#include "internal.h"

#define STRETCH_STEPS 32

static void join(peak *own, int64_t count, double samples, double ns)
{
    own->steps += count;
    own->samples += samples;
    own->ns += ns;
}

static void note(peak *own, double samples, double ns)
{
    if (own->is_known && samples * own->best_ns <= own->best_samples * ns)
        return;
    own->is_known = 1;
    own->best_samples = samples;
    own->best_ns = ns;
}

static void close_stretch(peak *own)
{
    own->last_samples = own->samples;
    own->last_ns = own->ns;
    note(own, own->samples, own->ns);
    own->steps = 0;
    own->samples = own->ns = 0;
}

/* `count` steps that had `samples` and took `ns` together. */
void peak_add(peak *own, int64_t count, double samples, double ns)
{
    int64_t lacking = own->steps < STRETCH_STEPS ? STRETCH_STEPS - own->steps : 1;
    double steps = (double)count;
    /* Steps without length (a clock that was set back) have no rate and join the following ones. */
    if (count < lacking || ns <= 0) {
        join(own, count, samples, ns);
        return;
    }
    if (count == lacking) {
        join(own, count, samples, ns);
        close_stretch(own);
        return;
    }
    join(own, lacking, samples * (double)lacking / steps, ns * (double)lacking / steps);
    close_stretch(own);
    int64_t whole = (count - lacking) / STRETCH_STEPS, left = (count - lacking) % STRETCH_STEPS;
    if (whole) {
        own->last_samples = samples * STRETCH_STEPS / steps;
        own->last_ns = ns * STRETCH_STEPS / steps;
        note(own, samples, ns);
    }
    if (left)
        join(own, left, samples * (double)left / steps, ns * (double)left / steps);
}

/* Samples per second; 0 if the steps took no time or had none. */
double peak_rate(const peak *own)
{
    double samples = own->samples, ns = own->ns, before = 0;
    if (own->is_known) {
        before = own->steps < STRETCH_STEPS ? (double)(STRETCH_STEPS - own->steps) / STRETCH_STEPS : 0;
        samples += own->last_samples * before;
        ns += own->last_ns * before;
        if (!(ns > 0 && samples * own->best_ns > own->best_samples * ns)) {
            samples = own->best_samples;
            ns = own->best_ns;
        }
    }
    return ns > 0 ? samples * 1e9 / ns : 0;
}
