// What the engine and the processes that read its response formats send each other: frames over a socket, on one
// machine.
//
//   frame     uint32 bytes after it, uint8 type, payload
//
//   engine -> process             process -> engine
//   kFormat   what to read         kReady    read: its program (engine/grammar/program.h)
//                                  kSlow     that takes long
//                                  kFailed   why there is none
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace turbomind::wire {

enum Type : uint8_t {
  kFormat,  // uint32 milliseconds of processor time, text
  kReady,   // uint32 marks, and for each int32 token, uint32 bytes of its text and they; uint8 whether no control
            // characters come; uint32 nodes, numbers of lists and rules; the int32s of nodes, lists, starts and least
            // lengths
  kSlow,
  kFailed,  // uint8 whether the format is to blame, text
};

constexpr size_t kHeader = sizeof(uint32_t) + 1;
constexpr size_t kMaxFrame = size_t{64} << 20;

class Writer {
 public:
  explicit Writer(Type type) : bytes_(kHeader, '\0') { bytes_[kHeader - 1] = static_cast<char>(type); }

  template <class T>
  Writer& put(T value) {
    return put(&value, 1);
  }
  template <class T>
  Writer& put(const T* values, size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count > 0) bytes_.append(reinterpret_cast<const char*>(values), count * sizeof(T));
    return *this;
  }
  template <class T>
  Writer& put(const std::vector<T>& values) {
    return put(values.data(), values.size());
  }
  Writer& put(const std::string& text) { return put(text.data(), text.size()); }
  Writer& put(std::string_view text) { return put(text.data(), text.size()); }

  std::string take() {
    const auto size = static_cast<uint32_t>(bytes_.size() - kHeader);
    std::memcpy(bytes_.data(), &size, sizeof(size));
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

// Reads a payload. Throws Error(kInternal) where it is too short.
class Reader {
 public:
  explicit Reader(std::string_view payload) : left_(payload) {}

  template <class T>
  T get() {
    T value;
    copy(&value, sizeof(T));
    return value;
  }
  template <class T>
  std::vector<T> get(size_t count) {
    if (count > left_.size() / sizeof(T)) throw internal_error("a frame is too short");
    std::vector<T> values(count);
    if (count > 0) copy(values.data(), count * sizeof(T));
    return values;
  }
  template <class T>
  std::vector<T> rest() {
    return get<T>(left_.size() / sizeof(T));
  }
  std::string text() { return std::string(std::exchange(left_, {})); }

 private:
  void copy(void* to, size_t size) {
    if (size > left_.size()) throw internal_error("a frame is too short");
    std::memcpy(to, left_.data(), size);
    left_.remove_prefix(size);
  }

  std::string_view left_;
};

// Takes the first whole frame off `bytes`. False: there is none yet. Throws Error(kInternal) for one of no sensible
// size.
inline bool take_frame(std::string& bytes, Type& type, std::string& payload) {
  if (bytes.size() < kHeader) return false;
  uint32_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  if (size > kMaxFrame) throw internal_error("a frame is too long");
  if (bytes.size() < kHeader + size) return false;
  type = static_cast<Type>(bytes[kHeader - 1]);
  payload.assign(bytes, kHeader, size);
  bytes.erase(0, kHeader + size);
  return true;
}

// What a process is given. The file: uint32 vocab_size, and for each token uint32 bytes and they; uint32 special
// tokens, and for each int32 token, uint32 bytes of its text and they; stop tokens, as int32.
constexpr int kSocket = 3;
constexpr int kVocabularyFile = 4;

}  // namespace turbomind::wire
