// Cache blocks in files of a directory. They outlive the process, and several processes may use them at once.
//
//   DIRECTORY/              mode 0700, of this user alone
//     .ledger               the bytes granted to all files, and the number of removals; changed under a file lock
//     <64 digits>.kv        a block: a header, its whole key, its pages
//     <64 digits>.<writer>.tmp
//
// A file's name is the digest of its key, and the file contains the key. A reader compares key and sizes and verifies a
// checksum; a file that fails is removed. A file is written under a temporary name and renamed, so a killed process
// leaves no partial file under a name that is read.
//
// The files take at most the given bytes. Space is granted before a file is written; eviction is LRU by the file's
// modification time, which uses update. Processes share their files: one that was added after the directory was read is
// found on lookup. The ledger counts removals; a process that has seen fewer of them reads the directory again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/digest/sha256.h"
#include "base/file_descriptor.h"
#include "engine/stats.h"

namespace turbomind {

// How events identify a block, in all tiers (engine/cache/cache_announcer.h).
struct BlockLabel {
  uint64_t hash = 0;
  std::optional<uint64_t> parent;  // the hash of the block before it; of the first block, none
  std::string lora_name;           // empty: none
  std::string extra_keys;          // a JSON list of what identifies it besides its tokens, or empty
};

struct FileLabel : BlockLabel {
  int index = 0;  // of the block in its prefix
  std::vector<int32_t> tokens;
};

// A labeled file was added or removed.
struct FileChange {
  std::shared_ptr<const FileLabel> label;
  bool is_there = false;
};

// Everything that determines a block's content.
struct BlockKey {
  explicit BlockKey(std::string all = {}) : bytes(std::move(all)), name(sha256(bytes)) {}

  std::string bytes;
  Sha256 name;
  std::shared_ptr<const FileLabel> label;  // null: no events for its file
};

class BlockFiles {
 public:
  // Creates or opens the directory. Throws Error(kInvalidArgument) with the reason if it cannot be used.
  // `retry`: pause after a failed write.
  BlockFiles(std::string directory, uint64_t max_bytes, std::chrono::milliseconds retry = std::chrono::seconds(30));

  // ---- any thread ----

  // Whether a block's file is known to exist, which then counts as used. False: it may exist.
  bool knows(const BlockKey& key, int depth);
  FileCounts counts() const;
  // Sets the label of a block whose file may be known.
  void describe(const BlockKey& key);
  // Returns the changes of labeled files since the last call, in order.
  std::vector<FileChange> take_changes();
  bool has_changes() const;

  // ---- one thread at a time ----

  // Whether a file of a block of `bytes` bytes exists.
  bool has(const BlockKey& key, size_t bytes);
  // Reads a block of `to.size()` bytes. False: it does not exist or was damaged.
  bool read(const BlockKey& key, std::span<std::byte> to, int depth);
  // Writes a block, unless it exists. False: the write failed; nothing is written for the retry pause after that.
  // `depth`: number of preceding blocks; of files used at the same time, the deepest are evicted first.
  bool write(const BlockKey& key, std::span<const std::byte> content, int depth);
  // The keys of some files that existed when the directory was read, each once; empty: none are left.
  std::vector<std::string> next_keys(size_t max_count);
  // Updates modification times for knows(), and checks for removals by other processes.
  void refresh_used();
  // Removes all files. Returns how many.
  int64_t drop_all();

 private:
  struct NameHash {
    size_t operator()(const Sha256& name) const;
  };
  struct Found {
    std::string file;
    std::optional<Sha256> name;  // none: a temporary file
    uint64_t bytes = 0;
    int64_t used = 0;  // in nanoseconds
  };
  struct Known {
    std::chrono::steady_clock::time_point used;  // last recorded use
    std::shared_ptr<const FileLabel> label;
  };
  using KnownFiles = std::unordered_map<Sha256, Known, NameHash>;

  // Opens or creates the directory, which only this user may access. Returns the problem; empty: none.
  std::string open_directory();
  std::vector<Found> scan();
  // Whether the directory still exists; if not, all files are forgotten.
  bool is_there();
  // The open ledger, which is this process's until it is closed; none if it cannot be locked.
  FileDescriptor lock_ledger();
  // Reserves bytes in the locked ledger for a file, and evicts files if none are left; for none, counts the files.
  bool grant(uint64_t bytes, const FileDescriptor& ledger);
  bool recount();
  // A new file of this length and temporary name, for whose bytes there is space; none if there is not.
  FileDescriptor reserve(uint64_t bytes, const std::string& temporary);
  void set_used(const Sha256& name, int depth) const;
  void remove_damaged(const Sha256& name, const char* why);
  void fail(const char* what, int error);
  // `is_used`: it counts as used now.
  void record(const BlockKey& key, bool is_used);
  void erase(const Sha256& name);
  // Both with mu_ held.
  void label(Known& known, const BlockKey& key);
  KnownFiles::iterator erase(KnownFiles::iterator known);
  // Forgets all files but these.
  void erase_others(const std::vector<Found>& found);

  const std::string directory_;
  const uint64_t max_bytes_;
  const std::chrono::milliseconds retry_;
  const std::string writer_;  // unique among processes that write to the directory
  FileDescriptor folder_;
  std::chrono::steady_clock::time_point next_try_{};  // of a write after a failure
  uint64_t next_temporary_ = 0;
  std::vector<Sha256> unread_;       // for next_keys()
  uint64_t removals_ = 0;            // seen in the ledger
  uint64_t uncounted_removals_ = 0;  // not yet counted in the ledger

  mutable std::mutex mu_;
  // Guarded by mu_.
  KnownFiles known_;
  std::vector<FileChange> changes_;
  std::vector<std::pair<Sha256, int>> used_;
  FileCounts counts_;
};

}  // namespace turbomind
