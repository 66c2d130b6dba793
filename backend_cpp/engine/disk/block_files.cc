#include "engine/disk/block_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <random>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "base/error.h"

namespace turbomind {

namespace {

constexpr const char* kLedger = ".ledger";
constexpr std::string_view kSuffix = ".kv";
constexpr std::string_view kTemporary = ".tmp";
constexpr std::chrono::seconds kUsedAgain{5};  // a file's use is noted at most so often
constexpr int64_t kAbandoned = 600;            // seconds after which a temporary file is nobody's
constexpr int64_t kNanoseconds = 1'000'000'000;
constexpr int kMaxNotes = 3;
constexpr uint64_t kMaxKeyBytes = 1 << 20;

struct Header {
  std::array<char, 8> magic = {'L', 'M', 'K', 'V', 'B', '0', '0', '1'};
  uint64_t key_bytes = 0;
  uint64_t content_bytes = 0;
  uint64_t sum = 0;  // of all that follows

  bool operator==(const Header&) const = default;
};

struct Ledger {
  uint64_t bytes = 0;
  uint64_t check = 0;  // ~bytes
  uint64_t removals = 0;
};

Header header_of(const BlockKey& key, std::span<const std::byte> content) {
  Header header;
  header.key_bytes = key.bytes.size();
  header.content_bytes = content.size();
  header.sum = checksum(content, checksum(std::as_bytes(std::span(key.bytes))));
  return header;
}

uint64_t file_bytes(const BlockKey& key, size_t content) {
  return sizeof(Header) + key.bytes.size() + content;
}

std::string file_name(const Sha256& name) {
  return hex(name) + std::string(kSuffix);
}

std::optional<Sha256> name_of(std::string_view file) {
  Sha256 name{};
  if (file.size() < 2 * name.size()) return std::nullopt;
  for (size_t i = 0; i < name.size(); ++i) std::from_chars(&file[2 * i], &file[2 * i] + 2, name[i], 16);
  return file_name(name) == file ? std::make_optional(name) : std::nullopt;
}

std::string reason(int error) {
  return std::generic_category().message(error);
}

// Reads or writes all of `parts`. 0, or an errno; EIO where a file ends early.
int transfer(ssize_t (*call)(int, const iovec*, int), const FileDescriptor& file, std::vector<iovec> parts) {
  size_t first = 0;
  while (first < parts.size()) {
    const ssize_t done = call(file.get(), parts.data() + first, static_cast<int>(parts.size() - first));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    auto left = static_cast<size_t>(done);
    if (left == 0) return EIO;
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (first == parts.size()) break;
    parts[first].iov_base = static_cast<std::byte*>(parts[first].iov_base) + left;
    parts[first].iov_len -= left;
  }
  return 0;
}

iovec part_of(const void* data, size_t bytes) {
  return {const_cast<void*>(data), bytes};
}

// Process ids would not do: those of containers that share a directory are alike.
std::string draw_name() {
  std::random_device device;
  return std::to_string(uint64_t{device()} << 32 | device());
}

}  // namespace

size_t BlockFiles::NameHash::operator()(const Sha256& name) const {
  size_t hash;
  std::memcpy(&hash, name.data(), sizeof(hash));
  return hash;
}

BlockFiles::BlockFiles(std::string directory, uint64_t max_bytes, std::chrono::milliseconds retry)
    : directory_(std::move(directory)), max_bytes_(max_bytes), retry_(retry), writer_(draw_name()) {
  if (const std::string wrong = open_directory(); !wrong.empty()) throw invalid_argument("cache_dir: " + wrong);
  const std::string probe = "probe." + writer_ + std::string(kTemporary);
  const FileDescriptor file(openat(folder_.get(), probe.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  if (!file) throw invalid_argument("cache_dir: nothing can be written to " + directory_ + ": " + reason(errno));
  unlinkat(folder_.get(), probe.c_str(), 0);
  if (!recount()) throw invalid_argument("cache_dir: " + directory_ + " cannot be locked: " + reason(errno));
  for (const Found& found : scan()) {
    if (!found.name) continue;
    known_[*found.name];
    unread_.push_back(*found.name);
  }
}

std::string BlockFiles::open_directory() {
  // Of a new one, the folders it is in may be missing too.
  for (size_t slash = directory_.find('/', 1); slash != std::string::npos; slash = directory_.find('/', slash + 1)) {
    mkdir(directory_.substr(0, slash).c_str(), 0777);
  }
  if (mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
    return directory_ + " cannot be made: " + reason(errno);
  }
  folder_ = FileDescriptor(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status{};
  if (!folder_ || fstat(folder_.get(), &status) != 0) return directory_ + " cannot be opened: " + reason(errno);
  std::string wrong;
  if (status.st_uid != geteuid()) {
    wrong = directory_ + " belongs to user " + std::to_string(status.st_uid) + ", this process to user " +
            std::to_string(geteuid()) + "; name a directory of its own";
  } else if ((status.st_mode & 0077) != 0) {
    wrong = "others may use " + directory_ + ", which will hold what users wrote; run: chmod 700 " + directory_;
  }
  if (!wrong.empty()) folder_ = FileDescriptor();
  return wrong;
}

// ---- any thread ----

bool BlockFiles::knows(const BlockKey& key, int depth) {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mu_);
  const auto it = known_.find(key.name);
  if (it == known_.end()) return false;
  label(it->second, key);
  if (now - it->second.used > kUsedAgain) {
    it->second.used = now;
    used_.emplace_back(key.name, depth);
  }
  return true;
}

FileCounts BlockFiles::counts() const {
  const std::lock_guard lock(mu_);
  FileCounts counts = counts_;
  counts.files = static_cast<int64_t>(known_.size());
  return counts;
}

std::vector<FileChange> BlockFiles::take_changes() {
  const std::lock_guard lock(mu_);
  return std::exchange(changes_, {});
}

bool BlockFiles::has_changes() const {
  const std::lock_guard lock(mu_);
  return !changes_.empty();
}

void BlockFiles::describe(const BlockKey& key) {
  const std::lock_guard lock(mu_);
  if (const auto known = known_.find(key.name); known != known_.end()) label(known->second, key);
}

void BlockFiles::label(Known& known, const BlockKey& key) {
  if (!key.label || known.label) return;
  known.label = key.label;
  changes_.push_back({key.label, true});
}

BlockFiles::KnownFiles::iterator BlockFiles::erase(KnownFiles::iterator known) {
  if (known->second.label) changes_.push_back({std::move(known->second.label), false});
  return known_.erase(known);
}

void BlockFiles::record(const BlockKey& key, bool is_used) {
  const std::lock_guard lock(mu_);
  Known& known = known_[key.name];
  if (is_used) known.used = std::chrono::steady_clock::now();
  label(known, key);
}

void BlockFiles::erase(const Sha256& name) {
  const std::lock_guard lock(mu_);
  if (const auto known = known_.find(name); known != known_.end()) erase(known);
}

void BlockFiles::erase_others(const std::vector<Found>& found) {
  std::unordered_set<Sha256, NameHash> there;
  for (const Found& found_file : found) {
    if (found_file.name) there.insert(*found_file.name);
  }
  const std::lock_guard lock(mu_);
  for (auto known = known_.begin(); known != known_.end();) {
    known = there.contains(known->first) ? std::next(known) : erase(known);
  }
}

bool BlockFiles::is_there() {
  struct stat status{};
  if (folder_ && fstat(folder_.get(), &status) == 0 && status.st_nlink > 0) return true;
  erase_others({});
  return false;
}

// ---- contents ----

bool BlockFiles::has(const BlockKey& key, size_t bytes) {
  struct stat status{};
  const bool is_there =
      folder_ && fstatat(folder_.get(), file_name(key.name).c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  if (!is_there || !S_ISREG(status.st_mode)) {
    erase(key.name);
    return false;
  }
  if (static_cast<uint64_t>(status.st_size) != file_bytes(key, bytes)) {
    remove_damaged(key.name, "its length is wrong");
    return false;
  }
  record(key, false);
  return true;
}

bool BlockFiles::read(const BlockKey& key, std::span<std::byte> to, int depth) {
  if (!folder_) return false;
  const FileDescriptor file(openat(folder_.get(), file_name(key.name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) {
    erase(key.name);
    return false;
  }
  Header header;
  std::string stored(key.bytes.size(), '\0');
  std::byte beyond{};
  const int error = transfer(
      ::readv, file,
      {part_of(&header, sizeof(header)), part_of(stored.data(), stored.size()), part_of(to.data(), to.size())});
  if (error != 0) {
    remove_damaged(key.name, "it ends early");
    return false;
  }
  if (stored != key.bytes || header != header_of(key, to) || ::read(file.get(), &beyond, 1) != 0) {
    remove_damaged(key.name, "its checksum or its key is wrong");
    return false;
  }
  record(key, true);
  set_used(key.name, depth);
  return true;
}

bool BlockFiles::write(const BlockKey& key, std::span<const std::byte> content, int depth) {
  if (std::chrono::steady_clock::now() < next_try_) return false;
  if (!is_there()) {
    if (const std::string wrong = open_directory(); !wrong.empty()) return fail(wrong.c_str(), 0), false;
  }
  if (has(key, content.size())) return record(key, true), true;
  const std::string name = file_name(key.name);
  const std::string temporary =
      hex(key.name) + "." + writer_ + "-" + std::to_string(next_temporary_++) + std::string(kTemporary);
  FileDescriptor file = reserve(file_bytes(key, content.size()), temporary);
  if (!file) return false;
  const Header header = header_of(key, content);
  int error = transfer(::writev, file,
                       {part_of(&header, sizeof(header)), part_of(key.bytes.data(), key.bytes.size()),
                        part_of(content.data(), content.size())});
  if (close(file.release()) != 0 && error == 0) error = errno;
  if (error == 0 && renameat(folder_.get(), temporary.c_str(), folder_.get(), name.c_str()) != 0) error = errno;
  if (error != 0) {
    unlinkat(folder_.get(), temporary.c_str(), 0);
    return fail("a file cannot be written", error), false;
  }
  record(key, true);
  set_used(key.name, depth);
  return true;
}

std::vector<std::string> BlockFiles::next_keys(size_t max_count) {
  std::vector<std::string> keys;
  while (keys.size() < max_count && !unread_.empty()) {
    const Sha256 name = unread_.back();
    unread_.pop_back();
    const FileDescriptor file(openat(folder_.get(), file_name(name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    Header header;
    if (!file || transfer(::readv, file, {part_of(&header, sizeof(header))}) != 0) continue;
    if (header.magic != Header().magic || header.key_bytes > kMaxKeyBytes) continue;
    std::string key(header.key_bytes, '\0');
    const bool is_whole = transfer(::readv, file, {part_of(key.data(), key.size())}) == 0;
    if (is_whole && sha256(key) == name) keys.push_back(std::move(key));
  }
  return keys;
}

void BlockFiles::refresh_used() {
  std::vector<std::pair<Sha256, int>> used;
  {
    const std::lock_guard lock(mu_);
    used.swap(used_);
  }
  for (const auto& [name, depth] : used) set_used(name, depth);
  if (!is_there()) return;
  const FileDescriptor file(openat(folder_.get(), kLedger, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  Ledger ledger;
  const bool is_whole = file && pread(file.get(), &ledger, sizeof(ledger), 0) == sizeof(ledger);
  if (!is_whole || ledger.removals != removals_ || uncounted_removals_ > 0) recount();
}

void BlockFiles::set_used(const Sha256& name, int depth) const {
  // Contents are of no use without the one before them, so the last of a prefix goes first.
  std::array<timespec, 2> times{};
  clock_gettime(CLOCK_REALTIME, times.data());
  const int64_t now = times[0].tv_sec * kNanoseconds + times[0].tv_nsec - int64_t{depth} * 1'000'000;
  times[1] = {now / kNanoseconds, now % kNanoseconds};
  times[0].tv_nsec = UTIME_OMIT;
  utimensat(folder_.get(), file_name(name).c_str(), times.data(), AT_SYMLINK_NOFOLLOW);
}

void BlockFiles::remove_damaged(const Sha256& name, const char* why) {
  if (unlinkat(folder_.get(), file_name(name).c_str(), 0) == 0) ++uncounted_removals_;
  erase(name);
  const std::lock_guard lock(mu_);
  if (++counts_.damaged <= kMaxNotes) {
    std::fprintf(stderr, "cache_dir: %s was removed: %s\n", file_name(name).c_str(), why);
  }
}

void BlockFiles::fail(const char* what, int error) {
  next_try_ = std::chrono::steady_clock::now() + retry_;
  const std::lock_guard lock(mu_);
  if (++counts_.failures > kMaxNotes) return;
  std::fprintf(stderr, "cache_dir: %s%s%s; nothing is written to %s for %lld ms\n", what, error != 0 ? ": " : "",
               error != 0 ? reason(error).c_str() : "", directory_.c_str(), static_cast<long long>(retry_.count()));
}

// ---- space ----

std::vector<BlockFiles::Found> BlockFiles::scan() {
  std::vector<Found> found;
  const int copy = openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(copy >= 0 ? fdopendir(copy) : nullptr, closedir);
  if (!listing) return found;
  const int64_t now = time(nullptr);
  while (const dirent* entry = readdir(listing.get())) {
    const std::string_view file = entry->d_name;
    const std::optional<Sha256> name = name_of(file);
    struct stat status{};
    if (!name && !file.ends_with(kTemporary)) continue;
    if (fstatat(folder_.get(), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!name && now - status.st_mtim.tv_sec > kAbandoned) {
      unlinkat(folder_.get(), entry->d_name, 0);
      continue;
    }
    found.push_back({std::string(file), name, static_cast<uint64_t>(status.st_size),
                     status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec});
  }
  return found;
}

FileDescriptor BlockFiles::lock_ledger() {
  FileDescriptor file(openat(folder_.get(), kLedger, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file && flock(file.get(), LOCK_EX) == 0) return file;
  fail("the ledger cannot be locked", errno);
  return FileDescriptor();
}

FileDescriptor BlockFiles::reserve(uint64_t bytes, const std::string& temporary) {
  if (bytes > max_bytes_) return FileDescriptor();
  const FileDescriptor lock = lock_ledger();
  if (!lock || !grant(bytes, lock)) return FileDescriptor();
  // Of its whole length before others count the files.
  FileDescriptor file(openat(folder_.get(), temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (file && ftruncate(file.get(), static_cast<off_t>(bytes)) == 0) return file;
  fail("a file cannot be made", errno);
  unlinkat(folder_.get(), temporary.c_str(), 0);
  return FileDescriptor();
}

bool BlockFiles::recount() {
  const FileDescriptor lock = lock_ledger();
  return lock && grant(0, lock);
}

bool BlockFiles::grant(uint64_t bytes, const FileDescriptor& file) {
  Ledger ledger;
  const bool is_whole =
      pread(file.get(), &ledger, sizeof(ledger), 0) == sizeof(ledger) && ledger.check == ~ledger.bytes;
  if (bytes == 0 || !is_whole || ledger.bytes + bytes > max_bytes_ || ledger.removals != removals_) {
    // More than this one file, so that the directory is not read for every file from now on.
    const uint64_t target_bytes = max_bytes_ - std::max(bytes, max_bytes_ / 128);
    std::vector<Found> found = scan();
    erase_others(found);
    std::ranges::sort(found, {}, &Found::used);
    ledger.bytes = 0;
    for (const Found& found_file : found) ledger.bytes += found_file.bytes;
    const bool is_full = ledger.bytes + bytes > max_bytes_;
    for (const Found& found_file : found) {
      if (!is_full || ledger.bytes <= target_bytes) break;
      if (!found_file.name || (unlinkat(folder_.get(), found_file.file.c_str(), 0) != 0 && errno != ENOENT)) continue;
      ledger.bytes -= found_file.bytes;
      ++uncounted_removals_;
      erase(*found_file.name);
    }
    if (ledger.bytes + bytes > max_bytes_) return fail("there is no space in cache_dir_bytes", 0), false;
  }
  ledger.bytes += bytes;
  ledger.check = ~ledger.bytes;
  ledger.removals += uncounted_removals_;
  if (pwrite(file.get(), &ledger, sizeof(ledger), 0) != sizeof(ledger)) {
    return fail("the ledger cannot be written", errno), false;
  }
  uncounted_removals_ = 0;
  removals_ = ledger.removals;
  const std::lock_guard lock(mu_);
  counts_.bytes = static_cast<int64_t>(ledger.bytes);
  return true;
}

int64_t BlockFiles::drop_all() {
  int64_t dropped = 0;
  for (const Found& found : scan()) {
    if (!found.name || unlinkat(folder_.get(), found.file.c_str(), 0) != 0) continue;
    erase(*found.name);
    ++dropped;
  }
  uncounted_removals_ += static_cast<uint64_t>(dropped);
  recount();
  return dropped;
}

}  // namespace turbomind
