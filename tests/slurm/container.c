/* The options that pyxis adds to srun, for tests: an image is a folder here, and a task is put into it.
 *
 *   cc -shared -fPIC -o container.so container.c        (libslurm-dev)
 *   up.sh FOLDER --spank container.so
 *   srun --container-image=/folder --container-mounts=/data:/data:ro,/usr:/usr ls /data
 *
 * Image, mounts (read-only or not) and the working folder are honoured; what else pyxis has is accepted and left.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(container, 1)

enum { IMAGE, MOUNTS, WORKDIR, VALUES, IGNORED = VALUES };
static char values[VALUES][32768];

static int given(int option, const char *text, int remote)
{
    (void)remote;
    if (option < VALUES)
        snprintf(values[option], sizeof values[option], "%s", text ? text : "");
    return 0;
}

#define WITH(name, option) { "container-" name, "VALUE", "as in pyxis", 1, option, given }
#define FLAG(name) { name, NULL, "as in pyxis", 0, IGNORED, given }
struct spank_option spank_options[] = {
    WITH("image", IMAGE), WITH("mounts", MOUNTS), WITH("workdir", WORKDIR), WITH("name", IGNORED), WITH("save", IGNORED),
    WITH("env", IGNORED), FLAG("container-mount-home"), FLAG("no-container-mount-home"), FLAG("container-remap-root"),
    FLAG("no-container-remap-root"), FLAG("container-entrypoint"), FLAG("no-container-entrypoint"),
    FLAG("container-writable"), FLAG("container-readonly"), SPANK_OPTIONS_TABLE_END,
};

static int failed(const char *what)
{
    slurm_error("container: %s: %s", what, strerror(errno));
    return -1;
}

/* An empty folder or file at a path below the image, for something to be mounted on. */
static void make_place(const char *path, int folder)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(part, 0755);
        *slash = '/';
    }
    if (folder)
        mkdir(part, 0755);
    else
        close(open(part, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
}

static int bind(const char *source, const char *target, int read_only)
{
    char place[PATH_MAX];
    struct stat found;
    if (stat(source, &found))
        return failed(source);
    snprintf(place, sizeof place, "%s%s", values[IMAGE], target);
    make_place(place, S_ISDIR(found.st_mode));
    if (mount(source, place, NULL, MS_BIND | MS_REC, NULL))
        return failed(place);
    if (read_only && mount(NULL, place, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL))
        return failed(place);
    return 0;
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char **argv)
{
    static const char *always[] = { "/proc", "/sys", "/dev", "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf" };
    char place[PATH_MAX + sizeof values[IMAGE]];
    (void)spank, (void)argc, (void)argv;
    if (!*values[IMAGE])
        return 0;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
        return failed("a mount namespace");
    snprintf(place, sizeof place, "%s/tmp", values[IMAGE]); /* where Slurm goes when the job's folder is not there */
    make_place(place, 1);
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (bind(always[i], always[i], 0))
            return -1;
    for (char *rest, *one = strtok_r(values[MOUNTS], ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        char *source = strsep(&one, ":"), *target = strsep(&one, ":");
        if (bind(source, target ? target : source, one && strstr(one, "ro")))
            return -1;
    }
    return chroot(values[IMAGE]) || chdir("/") ? failed(values[IMAGE]) : 0;
}

/* Slurm goes to the job's folder between the two, which the image may not have. */
int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    (void)spank, (void)argc, (void)argv;
    return *values[IMAGE] && chdir(*values[WORKDIR] ? values[WORKDIR] : "/") ? failed(values[WORKDIR]) : 0;
}
