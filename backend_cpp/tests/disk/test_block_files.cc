// Files of cache blocks: what is read is what was written, whatever happened to the file meanwhile.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "base/error.h"
#include "engine/disk/block_files.h"
#include "tests/check.h"
#include "tests/disk/scratch.h"

namespace turbomind::testing {

namespace {

using Bytes = std::vector<std::byte>;
constexpr uint64_t kPlenty = uint64_t{1} << 30;

Bytes content_of(unsigned seed, size_t size) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

BlockKey key_of(unsigned seed) {
  return BlockKey("tokens " + std::to_string(seed));
}

bool has_content(BlockFiles& files, unsigned seed, size_t size) {
  Bytes bytes(size);
  if (!files.read(key_of(seed), bytes, 0)) return false;
  CHECK(bytes == content_of(seed, size));
  return true;
}

uint64_t bytes_in(const std::string& directory) {
  uint64_t bytes = 0;
  for (const auto& path : content_files(directory)) bytes += std::filesystem::file_size(path);
  return bytes;
}

std::string rejection(const std::string& directory) {
  try {
    BlockFiles files(directory, kPlenty);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

}  // namespace

TEST(sha256_gives_the_digests_of_the_standard) {
  CHECK_EQUAL(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQUAL(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQUAL(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQUAL(hex(sha256(std::string(1'000'000, 'a'))),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(a_checksum_changes_with_every_bit_and_every_lost_byte) {
  Bytes bytes = content_of(1, 211);
  const uint64_t sum = checksum(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    CHECK(checksum(bytes) != sum);
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  for (size_t size = 0; size < bytes.size(); ++size) CHECK(checksum(std::span(bytes).first(size)) != sum);
}

TEST(a_content_is_found_by_the_next_process_and_by_no_other_key) {
  const ScratchDirectory scratch;
  const std::string directory = scratch.path() + "/new/cache";
  {
    BlockFiles files(directory, kPlenty);
    CHECK(!files.knows(key_of(1), 0));
    CHECK(files.write(key_of(1), content_of(1, 5000), 0));
    CHECK(files.knows(key_of(1), 0));
    CHECK(files.write(key_of(1), content_of(1, 5000), 0));  // it is there
  }
  struct stat status{};
  CHECK_EQUAL(stat(directory.c_str(), &status), 0);
  CHECK_EQUAL(status.st_mode & 0777, 0700u);
  BlockFiles files(directory, kPlenty);
  CHECK(files.knows(key_of(1), 0));
  CHECK(has_content(files, 1, 5000));
  CHECK(!has_content(files, 2, 5000));
  // Another key's content under this name.
  std::filesystem::copy_file(content_files(directory).at(0), directory + "/" + hex(key_of(3).name) + ".kv");
  CHECK(files.has(key_of(3), 5000));
  CHECK(!has_content(files, 3, 5000));
  CHECK(!files.has(key_of(3), 5000));
  CHECK_EQUAL(files.counts().damaged, 1);
  CHECK_EQUAL(files.drop_all(), 1);
  CHECK(!has_content(files, 1, 5000));
}

TEST(what_was_torn_or_has_changed_is_not_read_and_removed) {
  const ScratchDirectory scratch;
  BlockFiles files(scratch.path(), kPlenty);
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    CHECK(files.write(key_of(7), content_of(7, 300), 0));
    const auto path = content_files(scratch.path()).at(0);
    const auto size = std::filesystem::file_size(path);
    if (round % 3 == 0) {
      std::filesystem::resize_file(path, random() % size);
    } else if (round % 3 == 1) {
      std::filesystem::resize_file(path, size + 1 + random() % 9);
    } else {
      flip_bit(path, random() % (size * 8));
    }
    CHECK(!has_content(files, 7, 300));
    CHECK(content_files(scratch.path()).empty());
  }
  CHECK_EQUAL(files.counts().damaged, 300);
}

TEST(files_keep_to_their_bytes_and_what_was_used_last_stays) {
  const ScratchDirectory scratch;
  const uint64_t max_bytes = 1 << 20;
  BlockFiles files(scratch.path(), max_bytes);
  for (unsigned seed = 0; seed < 2000; ++seed) {
    CHECK(files.write(key_of(seed), content_of(seed, 2000), 0));
    CHECK(has_content(files, 0, 2000));  // in use all the time
    CHECK(files.counts().bytes <= static_cast<int64_t>(max_bytes));
    if (seed % 100 == 0) CHECK(bytes_in(scratch.path()) <= max_bytes);
  }
  const uint64_t bytes = bytes_in(scratch.path());
  CHECK(bytes <= max_bytes && bytes >= max_bytes - max_bytes / 100);
  CHECK(has_content(files, 1999, 2000));
  CHECK(!has_content(files, 1, 2000));
  CHECK(!files.write(key_of(5000), content_of(1, max_bytes), 0));  // too large for all of them
  // The blocks in front of others that were used at the same time are the last to go.
  const ScratchDirectory other;
  BlockFiles chain(other.path(), 20'000);
  for (unsigned seed = 0; seed < 8; ++seed)
    CHECK(chain.write(key_of(seed), content_of(seed, 2000), 10'000 * static_cast<int>(seed)));
  for (unsigned seed = 100; seed < 104; ++seed) CHECK(chain.write(key_of(seed), content_of(seed, 2000), 0));
  CHECK(has_content(chain, 0, 2000));
  CHECK(!has_content(chain, 7, 2000));
}

TEST(a_directory_that_vanishes_is_made_again) {
  const ScratchDirectory scratch;
  const std::string directory = scratch.path() + "/cache";
  BlockFiles files(directory, kPlenty);
  CHECK(files.write(key_of(1), content_of(1, 100), 0));
  std::filesystem::remove_all(directory);
  CHECK(!has_content(files, 1, 100));
  CHECK(files.write(key_of(2), content_of(2, 100), 0));
  CHECK(has_content(files, 2, 100));
  CHECK(!files.knows(key_of(1), 0));
}

TEST(removals_by_others_are_noticed) {
  const ScratchDirectory scratch;
  const auto labelled = [](unsigned seed) {
    BlockKey key = key_of(seed);
    key.label = std::make_shared<const FileLabel>(FileLabel{{seed, std::nullopt, "", ""}, 0, {}});
    return key;
  };
  const auto changes_of = [](BlockFiles& files) {
    std::string text;
    for (const FileChange& change : files.take_changes()) {
      text += (change.is_there ? "+" : "-") + std::to_string(change.label->hash);
    }
    return text;
  };
  BlockFiles one(scratch.path(), kPlenty);
  for (const unsigned seed : {1, 2, 3}) CHECK(one.write(labelled(seed), content_of(seed, 100), 0));
  CHECK_EQUAL(changes_of(one), std::string("+1+2+3"));
  BlockFiles other(scratch.path(), 3 * 150);
  CHECK(other.knows(key_of(1), 0));
  CHECK_EQUAL(changes_of(other), std::string());  // nobody has said what it is
  CHECK(other.knows(labelled(2), 0) && other.has(labelled(2), 100));
  CHECK_EQUAL(changes_of(other), std::string("+2"));
  CHECK(other.write(key_of(4), content_of(4, 100), 0));  // the first one goes
  CHECK_EQUAL(changes_of(one), std::string());
  one.refresh_used();
  CHECK_EQUAL(changes_of(one), std::string("-1"));
  CHECK_EQUAL(one.counts().files, 2);
  // A file that is damaged, and one that was removed by hand.
  flip_bit(scratch.path() + "/" + hex(key_of(3).name) + ".kv", 700);
  CHECK(!has_content(other, 3, 100));
  std::filesystem::remove(scratch.path() + "/" + hex(key_of(2).name) + ".kv");
  CHECK(!one.has(key_of(2), 100));
  CHECK_EQUAL(changes_of(one), std::string("-2"));
  other.refresh_used();
  one.refresh_used();
  CHECK_EQUAL(changes_of(one), std::string("-3"));
  CHECK_EQUAL(changes_of(other), std::string("-2"));
  CHECK(one.write(labelled(5), content_of(5, 100), 0));
  CHECK_EQUAL(other.drop_all(), 2);
  one.refresh_used();
  CHECK_EQUAL(changes_of(one), std::string("+5-5"));
  std::filesystem::remove_all(scratch.path());
  CHECK_EQUAL(one.counts().files, 0);
}

TEST(a_full_disk_costs_what_it_has_no_room_for) {
  const ScratchDirectory scratch;
  BlockFiles files(scratch.path(), kPlenty, std::chrono::milliseconds(0));
  BlockFiles patient(scratch.path(), kPlenty, std::chrono::hours(1));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 4096;
  setrlimit(RLIMIT_FSIZE, &small);
  const bool was_written = files.write(key_of(1), content_of(1, 10'000), 0);
  const bool was_written_patiently = patient.write(key_of(1), content_of(1, 10'000), 0);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(!was_written && !was_written_patiently);
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
    CHECK_EQUAL(entry.path().filename().string(), ".ledger");
  }
  CHECK_EQUAL(files.counts().failures, 1);
  CHECK(files.write(key_of(1), content_of(1, 10'000), 0));
  CHECK(has_content(files, 1, 10'000));
  CHECK(!patient.write(key_of(2), content_of(2, 100), 0));  // not yet
  CHECK(has_content(patient, 1, 10'000));
}

TEST(processes_share_a_directory_and_its_bytes) {
  const ScratchDirectory scratch;
  const uint64_t max_bytes = 200'000;
  const auto work = [&](unsigned who) {
    BlockFiles files(scratch.path(), max_bytes);
    std::mt19937 random(who);
    int found = 0;
    for (int i = 0; i < 600; ++i) {
      const unsigned seed = random() % 150;
      if (has_content(files, seed, 3000)) {
        ++found;
      } else {
        CHECK(files.write(key_of(seed), content_of(seed, 3000), 0));
      }
    }
    CHECK_EQUAL(files.counts().damaged, 0);
    return found;
  };
  std::vector<pid_t> children;
  for (unsigned who = 1; who <= 3; ++who) {
    const pid_t child = fork();
    if (child == 0) {
      int status = 1;
      try {
        status = work(who) > 0 ? 0 : 2;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
      _exit(status);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQUAL(status, 0);
  }
  CHECK(bytes_in(scratch.path()) <= max_bytes);
  CHECK(bytes_in(scratch.path()) > max_bytes / 2);
}

TEST(a_directory_that_is_not_this_users_alone_is_refused) {
  const ScratchDirectory scratch;
  CHECK_EQUAL(rejection(scratch.path()), "");
  std::filesystem::permissions(scratch.path(), std::filesystem::perms(0750));
  CHECK(rejection(scratch.path()).find("run: chmod 700 " + scratch.path()) != std::string::npos);
  std::filesystem::permissions(scratch.path(), std::filesystem::perms(0700));
  // A directory of this user alone in which nobody makes files.
  CHECK(rejection("/proc/self/fd").find("cache_dir: nothing can be written to /proc/self/fd") == 0);
  const std::string file = scratch.path() + "/file";
  std::ofstream(file) << "no directory";
  CHECK(rejection(file).find("cache_dir: " + file) == 0);
  CHECK(rejection(file + "/below").find("cannot be made") != std::string::npos);
  // Root owns what it makes, and may give it away; for everybody else root's directories are another user's.
  std::string others = "/usr";
  if (geteuid() == 0) {
    others = scratch.path();
    CHECK_EQUAL(chown(others.c_str(), 4711, 4711), 0);
  }
  CHECK(rejection(others).find(others + " belongs to user ") != std::string::npos);
}

}  // namespace turbomind::testing
