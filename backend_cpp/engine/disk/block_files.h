// Contents of cache blocks in the files of a directory, which outlive the process and which several processes may use
// at once.
//
//   DIRECTORY/              mode 0700, of this user alone
//     .ledger               the bytes that all files are granted, and the number of removals; whoever changes it
//                           holds a lock on it
//     <64 digits>.kv        a content: a header, its whole key, what the pages held
//     <64 digits>.<writer>.tmp
//
// A file's name is the digest of its key, and the key comes with it, so a file holds what its name says or is not used:
// key and sizes are compared, and a checksum finds what was torn or has changed. Such a file is removed. A file is
// written under another name and then renamed, so a process that is killed leaves no part of one under a name that is
// read.
//
// The files take at most the bytes given. Space is granted before a file is written; what has not been used for longest
// goes (a file's time of modification, which uses set). One process's files are the others' too: what was not there
// when the directory was read is found when somebody asks for it. That others have removed files is seen in the ledger,
// which counts removals: whoever has seen fewer reads the directory again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/digest/sha256.h"
#include "base/file_descriptor.h"
#include "engine/disk/block_label.h"

namespace turbomind {

// All that a content follows from.
struct BlockKey {
  explicit BlockKey(std::string all = {}) : bytes(std::move(all)), name(sha256(bytes)) {}

  std::string bytes;
  Sha256 name;
  std::shared_ptr<const FileLabel> label;  // null: no events of its file
};

class BlockFiles {
 public:
  // Makes the directory, or takes the one there is. Throws Error(kInvalidArgument) that says what is wrong with it.
  // `retry`: for so long nothing is written after a failure to write.
  BlockFiles(std::string directory, uint64_t most_bytes, std::chrono::milliseconds retry = std::chrono::seconds(30));

  const std::string& directory() const { return directory_; }

  // ---- any thread ----

  // Whether a content's file is known to be there. One that is counts as used; false: perhaps there is one.
  bool knows(const BlockKey& key, int depth);
  struct Counts {
    int64_t files = 0;    // known
    int64_t bytes = 0;    // that all files are granted
    int64_t damaged = 0;  // files that were not what their names said
    int64_t failures = 0;
  };
  Counts counts() const;
  // Says what a content is whose file may be known.
  void describe(const BlockKey& key);
  // What has happened since the last call to files whose keys had labels, in its order.
  std::vector<FileChange> take_changes();
  bool has_changes() const;

  // ---- one thread at a time ----

  // Whether there is a file of a content of `bytes` bytes.
  bool has(const BlockKey& key, size_t bytes);
  // Reads a content of `to.size()` bytes. False: there is none, or it was damaged.
  bool read(const BlockKey& key, std::span<std::byte> to, int depth);
  // Writes a content, unless it is there. False: it could not be written. For some time after a failure nothing is
  // written at all. `depth`: blocks in front of it; of files used at the same time, the deepest go first.
  bool write(const BlockKey& key, std::span<const std::byte> content, int depth);
  // The keys of some of the files that were there when the directory was read, each once; empty: those were all.
  std::vector<std::string> next_keys(size_t most);
  // Does what knows() has noted, and notices what others have removed.
  void mark_used();
  // Removes all files. Returns how many.
  int64_t drop_all();

 private:
  struct NameHash {
    size_t operator()(const Sha256& name) const;
  };
  struct Found {
    std::string file;
    std::optional<Sha256> name;  // none: it is being written
    uint64_t bytes = 0;
    int64_t used = 0;  // in nanoseconds
  };
  struct Known {
    std::chrono::steady_clock::time_point used;  // when that was last noted
    std::shared_ptr<const FileLabel> label;
  };
  using KnownFiles = std::unordered_map<Sha256, Known, NameHash>;

  // Whether the directory is there and this user's alone; makes one. Returns what is wrong; empty: nothing.
  std::string open_directory();
  std::vector<Found> scan();
  // Whether the directory is still there; otherwise so are no files.
  bool is_there();
  // Takes bytes for a file from the ledger, in exchange for others where there are none left.
  bool grant(uint64_t bytes);
  void set_used(const Sha256& name, int depth) const;
  void remove_damaged(const Sha256& name, const char* why);
  void fail(const char* what, int error);
  // `is_used`: it counts as used now.
  void note(const BlockKey& key, bool is_used);
  void forget(const Sha256& name);
  // Both with mu_ held.
  void label(Known& known, const BlockKey& key);
  KnownFiles::iterator erase(KnownFiles::iterator known);
  // Forgets all but these.
  void forget_others(const std::vector<Found>& found);

  const std::string directory_;
  const uint64_t most_bytes_;
  const std::chrono::milliseconds retry_;
  const std::string writer_;  // this one's name among all that write to the directory
  FileDescriptor folder_;
  std::chrono::steady_clock::time_point next_try_{};  // of writing
  uint64_t next_temporary_ = 0;
  std::vector<Sha256> unread_;  // for next_keys()
  uint64_t removals_ = 0;       // that this one has seen in the ledger
  uint64_t own_removals_ = 0;   // that the ledger does not count yet

  mutable std::mutex mu_;
  // Guarded by mu_.
  KnownFiles known_;
  std::vector<FileChange> changes_;
  std::vector<std::pair<Sha256, int>> used_;
  Counts counts_;
};

}  // namespace turbomind
