/* Added to the end of pyconfig.h: what the kernel has and this musl does not wrap.
 *
 * close_range(2): without it a child between vfork and exec lists /proc/self/fd
 * and closes one by one while the daemon stands still; in an image without /proc
 * it tries every number up to the limit, a million in many pods. A kernel or
 * seccomp filter that refuses the call is handled by the caller (it falls back).
 */
#ifndef SANDMAN_COMPAT_H
#define SANDMAN_COMPAT_H
#ifndef __ASSEMBLER__
#include <sys/syscall.h>

extern long syscall(long number, ...);

static inline __attribute__((unused)) int
close_range(unsigned int first, unsigned int last, int flags)
{
    return (int)syscall(SYS_close_range, first, last, flags);
}

#endif
#endif
