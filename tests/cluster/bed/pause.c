/* The process that holds a pod's namespaces: reaps what is left to it and waits to be told to go. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, NULL, WNOHANG) > 0) {} }

int main(void) {
    struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    signal(SIGINT, leave);
    signal(SIGTERM, leave);
    sigaction(SIGCHLD, &on_child, NULL);
    for (;;) pause();
}
