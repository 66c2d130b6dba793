// A library that tritonserver is started with (LD_PRELOAD): other users can open none of its files.
//
// The umask is set here, so that the printed command needs no shell around it and takes further options at its end. The
// shared memory through which Triton's Python backend passes prompts is made by Boost, which sets its permissions to
// 0644 with fchmod, so that a umask does not help. Whoever opened it at that moment could read along for good.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) int fchmod(int file, mode_t mode) noexcept {
  return static_cast<int>(syscall(SYS_fchmod, file, mode & S_IRWXU));
}

__attribute__((constructor)) static void make_files_private() {
  umask(S_IRWXG | S_IRWXO);
}
