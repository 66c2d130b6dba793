#include "triton/engine_location.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/error.h"

extern char** environ;

namespace turbomind {

namespace {

struct CommandResult {
  int status;
  std::string output;  // stdout and stderr
};

CommandResult run_command(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw internal_error("cannot make a pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  CommandResult result{-1, {}};
  if (error == 0) {
    std::array<char, 4096> buffer;
    for (ssize_t count; (count = read(ends[0], buffer.data(), buffer.size())) > 0;)
      result.output.append(buffer.data(), static_cast<size_t>(count));
    int status = 0;
    waitpid(child, &status, 0);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  } else {
    result.output = command[0] + ": " + std::strerror(error);
  }
  close(ends[0]);
  return result;
}

std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

std::vector<std::string> python_module(const std::string& name) {
  const char* python = std::getenv("LMDEPLOY_PYTHON");
  return {python != nullptr ? python : "python3", "-m", name};
}

// The output of a command, with these arguments.
std::string directory_of(const std::string& what, std::vector<std::string> command,
                         const std::vector<std::string>& arguments) {
  command.insert(command.end(), arguments.begin(), arguments.end());
  const CommandResult result = run_command(command);
  const std::string line = last_line(result.output);
  if (result.status != 0) throw invalid_argument("cannot load " + what + ": " + line);
  if (!std::filesystem::exists(std::filesystem::path(line) / "spec.json"))
    throw internal_error("the converter named no engine directory: " + result.output);
  return line;
}

}  // namespace

std::string find_engine_directory(const std::string& model_path, const std::string& version_directory) {
  namespace fs = std::filesystem;
  std::string path = model_path;
  if (!path.empty()) {
    const fs::path alongside = fs::path(version_directory) / path;
    if (fs::path(path).is_relative() && fs::exists(alongside)) path = alongside.string();
    if (fs::exists(fs::path(path) / "spec.json")) return path;
  }
  return directory_of("model '" + path + "'", python_module("lmdeploy.turbomind.engine_dir"), {path});
}

Programs installed_programs(const std::string& version_directory) {
  const auto locate = [version_directory](const SpeculativeConfig& drafts, const std::string& target) {
    if (!drafts.is_head) return find_engine_directory(drafts.model, version_directory);
    return directory_of("the head for " + target, python_module("lmdeploy.turbomind.heads"),
                        {target, drafts.method, drafts.model});
  };
  return {python_module("lmdeploy.pytorch.worker"), python_module("lmdeploy.kv_events.publisher"),
          python_module("lmdeploy.grammars"), locate};
}

}  // namespace turbomind
