// Our end of the socket to a grammar's process: orders go out, states come in.
//
// Orders are sent by the step thread, which never waits: what does not fit into the socket is sent later by the thread
// that reads. States are asked for by number and are filled in, once, by that thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grammar_host.h"
#include "engine/grammar/wire.h"

namespace turbomind {

// A state that is asked for.
struct AskedState {
  GrammarState state;  // not before it is known
  std::atomic<bool> is_known{false};
};

class GrammarConnection {
 public:
  // `socket` does not block. `number`: of the process.
  GrammarConnection(uint64_t number, FileDescriptor socket, size_t mask_words)
      : number_(number), socket_(std::move(socket)), mask_words_(mask_words) {}

  uint64_t number() const { return number_; }
  int socket() const { return socket_.get(); }

  // ---- any thread ----

  void send(std::string frame);
  // A number for the question that `state` is the answer to.
  uint32_t expect(std::shared_ptr<AskedState> state);
  // Why nothing more comes. None while it may.
  std::optional<Error> failure() const;
  void fail(const Error& error);

  // ---- the thread that reads ----

  // Reads what has come, and takes a whole frame off it. False: there is none. Throws Error when the process has ended.
  bool receive(wire::Type& type, std::string& payload);
  // Takes what the process says of its states, and sends what is left. True when something has changed.
  bool serve();
  bool has_unsent() const;

 private:
  void read_socket();
  void flush();  // mu_ is held
  void take_state(const std::string& payload);

  const uint64_t number_;
  const FileDescriptor socket_;
  const size_t mask_words_;
  std::string received_;  // the reading thread's
  mutable std::mutex mu_;
  std::string unsent_;                                                   // guarded by mu_
  std::optional<Error> failure_;                                         // guarded by mu_
  std::unordered_map<uint32_t, std::shared_ptr<AskedState>> questions_;  // guarded by mu_
  uint32_t last_question_ = 0;                                           // guarded by mu_
};

}  // namespace turbomind
