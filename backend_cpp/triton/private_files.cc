// LD_PRELOAD library of tritonserver that keeps its files and keys private to the user.
//
// The umask is set here, so that the printed command needs no shell around it and takes further options at its end. The
// shared memory through which Triton's Python backend passes prompts is made by Boost, which sets its permissions to
// 0644 with fchmod, so that a umask does not help. Whoever opened it at that moment could read along for good.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

extern "C" __attribute__((visibility("default"))) int fchmod(int file, mode_t mode) noexcept {
  return static_cast<int>(syscall(SYS_fchmod, file, mode & S_IRWXU));
}

// tritonserver takes the keys of restricted protocols as arguments only, which every user of the machine can read:
// --grpc-restricted-protocol=PROTOCOLS:HEADER=KEY. They are replaced by those of the environment, which others cannot
// read, before main() sees them; the command line that the kernel shows keeps the keys that open nothing.
__attribute__((constructor)) static void make_private(int argc, char** argv, char**) {
  umask(S_IRWXG | S_IRWXO);
  // Not in the program that starts it, which would hand them on as arguments.
  if (argc == 0 || std::strcmp(basename(argv[0]), "tritonserver") != 0) return;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool is_repository = argument.rfind("--grpc-restricted-protocol=model-repository:", 0) == 0;
    if (!is_repository && argument.find("-restricted-") == std::string::npos) continue;
    const char* key = std::getenv(is_repository ? "LMDEPLOY_REPOSITORY_KEY" : "LMDEPLOY_RESTRICTION_KEY");
    if (key != nullptr) argv[i] = strdup((argument.substr(0, argument.rfind('=') + 1) + key).c_str());
  }
}
