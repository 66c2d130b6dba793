// The program turbomind_grammar: reads response formats for an engine that has started it (grammar/worker.h). It ends
// when the engine closes its socket, for whatever reason.
#include <malloc.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/grammar/wire.h"
#include "grammar/worker.h"

namespace turbomind {

namespace {

Vocabulary read_vocabulary() {
  struct stat info{};
  if (fstat(wire::kVocabularyFile, &info) != 0) throw internal_error("there is no vocabulary");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count =
        pread(wire::kVocabularyFile, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count <= 0) throw internal_error("the vocabulary cannot be read");
    done += static_cast<size_t>(count);
  }
  wire::Reader reader(bytes);
  const auto read_text = [&] {
    const std::vector<char> text = reader.get<char>(reader.get<uint32_t>());
    return std::string(text.begin(), text.end());
  };
  Vocabulary vocabulary;
  for (auto left = reader.get<uint32_t>(); left > 0; --left) vocabulary.tokens.push_back(read_text());
  for (auto left = reader.get<uint32_t>(); left > 0; --left) {
    const auto token = reader.get<int32_t>();
    vocabulary.special.emplace_back(token, read_text());
  }
  vocabulary.stop_token_ids = reader.rest<int32_t>();
  return vocabulary;
}

}  // namespace

}  // namespace turbomind

int main() {
  using namespace turbomind;
  mallopt(M_ARENA_MAX, 1);  // the thread that reads would map another, which the limit of memory counts
  syscall(SYS_close_range, wire::kVocabularyFile + 1, ~0U, 0);  // what the engine's process had open
  signal(SIGINT, SIG_IGN);                                      // Ctrl-C is the engine's affair
  signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<FormatReader> reader;
  std::string why_none;
  try {
    reader = load_xgrammar(read_vocabulary());
    reader->read(R"({"type":"json_object"})");  // the first is the slowest
  } catch (const std::exception& error) {
    why_none = error.what();
  }
  run_worker(reader.get(), why_none, wire::kSocket);
}
