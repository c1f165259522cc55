// Process 1 of the user-mode Linux guest (a static program, read from the host's root through
// hostfs): puts that root, read-only, under an overlay in memory, runs guest-run.sh in it and
// powers off. In C because each process costs 50 to 100 ms in the guest.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char control[512];       // the folder of the host that holds the command and its result
static char top[256] = "/mnt";  // where the overlay lies
static char root[300];          // the new root
static char command_line[65536];

static void power_off(void) {
  sync();
  reboot(RB_POWER_OFF);
  _exit(1);
}

static void die(const char* what) {
  printf("rdma-vm: FAILED: %s: %s\n", what, strerror(errno));
  fflush(stdout);
  power_off();
}

// `path` in the new root; the last four results stay valid.
static char* in_root(const char* path) {
  static char results[4][1024];
  static int next;
  next = (next + 1) & 3;
  snprintf(results[next], sizeof results[next], "%s%s", root, path);
  return results[next];
}

static void mount_or_die(const char* source, const char* target, const char* type,
                         unsigned long flags, const char* data) {
  if (mount(source, target, type, flags, data) != 0) die(target);
}

static void make_folders(const char* path) {
  char copy[1024];
  snprintf(copy, sizeof copy, "%s", path);
  for (char* at = copy + 1; *at != 0; ++at) {
    if (*at != '/') continue;
    *at = 0;
    mkdir(copy, 0755);
    *at = '/';
  }
  mkdir(copy, 0755);
}

static void read_option(const char* key, char* value, size_t room) {
  const char* at = strstr(command_line, key);
  if (at == NULL) return;
  at += strlen(key);
  size_t length = 0;
  while (*at != 0 && *at != ' ' && *at != '\n' && length + 1 < room) value[length++] = *at++;
  value[length] = 0;
}

static void read_command_line(void) {
  mount_or_die("proc", "/proc", "proc", 0, NULL);
  const int file = open("/proc/cmdline", O_RDONLY);
  const ssize_t length = file < 0 ? 0 : read(file, command_line, sizeof command_line - 1);
  command_line[length > 0 ? length : 0] = 0;
  close(file);
  read_option("rv.ctl=", control, sizeof control);
  read_option("rv.top=", top, sizeof top);
}

static void mount_root(void) {
  char text[1024];
  mount_or_die("tmpfs", top, "tmpfs", 0, "size=95%,mode=755");
  const char* const folders[] = {"u", "w", "n"};
  for (int i = 0; i < 3; ++i) {
    snprintf(text, sizeof text, "%s/%s", top, folders[i]);
    mkdir(text, 0755);
  }
  snprintf(root, sizeof root, "%s/n", top);
  snprintf(text, sizeof text, "lowerdir=/,upperdir=%s/u,workdir=%s/w", top, top);
  mount_or_die("overlay", root, "overlay", 0, text);
  mount_or_die("sys", in_root("/sys"), "sysfs", 0, NULL);
  mount_or_die("dev", in_root("/dev"), "devtmpfs", 0, NULL);
  mkdir(in_root("/dev/pts"), 0755);
  mkdir(in_root("/dev/shm"), 01777);
  mount_or_die("devpts", in_root("/dev/pts"), "devpts", 0, "ptmxmode=666");
  mount_or_die("tmpfs", in_root("/dev/shm"), "tmpfs", 0, "mode=1777,size=80%");
  mount_or_die("tmpfs", in_root("/tmp"), "tmpfs", 0, "mode=1777,size=80%");
  mount_or_die("tmpfs", in_root("/run"), "tmpfs", 0, "mode=755");
  symlink("/proc/self/fd", in_root("/dev/fd"));
  symlink("fd/0", in_root("/dev/stdin"));
  symlink("fd/1", in_root("/dev/stdout"));
  symlink("fd/2", in_root("/dev/stderr"));
  mkdir(in_root("/run/rdma-vm"), 0755);
  mount_or_die("none", in_root("/run/rdma-vm"), "hostfs", 0, control);
}

// Writable folders of the host, at the same path in the guest.
static void mount_shares(void) {
  char text[1024];
  for (int i = 0;; ++i) {
    snprintf(text, sizeof text, "/run/rdma-vm/rw%d", i);
    FILE* file = fopen(in_root(text), "r");
    if (file == NULL) return;
    if (fgets(text, sizeof text, file) == NULL) text[0] = 0;
    fclose(file);
    text[strcspn(text, "\n")] = 0;
    make_folders(in_root(text));
    mount_or_die("none", in_root(text), "hostfs", 0, text);
  }
}

int main(void) {
  read_command_line();
  mount_root();
  mount_shares();
  mount_or_die("/proc", in_root("/proc"), NULL, MS_MOVE, NULL);
  // Programs that read the clock rate find the host's.
  if (access(in_root("/run/rdma-vm/cpuinfo"), R_OK) == 0) {
    mount(in_root("/run/rdma-vm/cpuinfo"), in_root("/proc/cpuinfo"), NULL, MS_BIND, NULL);
  }
  const pid_t runner = fork();
  if (runner == 0) {
    setsid();
    if (chroot(root) != 0 || chdir("/") != 0) die("chroot");
    execl("/bin/bash", "bash", "/run/rdma-vm/guest-run.sh", (char*)NULL);
    die("bash");
  }
  while (1) {
    int status;
    const pid_t ended = wait(&status);
    if (ended == runner || (ended < 0 && errno == ECHILD)) break;
  }
  power_off();
}
