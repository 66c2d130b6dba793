// Protocol between the engine and the processes that compile response formats: frames over a socket, on one
// machine.
//
//   frame         uint32 bytes after it, uint8 type, payload
//   text, list    uint32 bytes or members, and they
//
//   engine -> process               process -> engine
//   kVocabulary   first of all       kReady    read: its program (engine/grammar/program.h)
//   kFormat       what to read       kSlow     that takes long
//                                    kFailed   why there is none
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace turbomind {

// Special tokens and their texts, which structural tags may name.
using SpecialTokens = std::vector<std::pair<int32_t, std::string>>;

namespace wire {

constexpr int kSocket = 3;  // the process's end of it

enum Type : uint8_t {
  kVocabulary,  // uint32 tokens and their texts; special tokens; list of int32 stop tokens
  kFormat,      // uint32 milliseconds of processor time, and what to read
  kReady,       // special tokens that stand for their texts; lists of nodes,
                // of int32 lists, starts and least lengths
  kSlow,
  kFailed,  // uint8 whether the format is to blame, and why
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
  Writer& put(const std::string& bytes) { return put(bytes.data(), bytes.size()); }
  Writer& put_text(const std::string& text) { return put(static_cast<uint32_t>(text.size())).put(text); }
  template <class T>
  Writer& put_list(const std::vector<T>& values) {
    return put(static_cast<uint32_t>(values.size())).put(values.data(), values.size());
  }
  // uint32 how many, and for each int32 token and text.
  Writer& put_special_tokens(const SpecialTokens& tokens) {
    put(static_cast<uint32_t>(tokens.size()));
    for (const auto& [token, text] : tokens) put(token).put_text(text);
    return *this;
  }

  std::string take() {
    const auto size = static_cast<uint32_t>(bytes_.size() - kHeader);
    std::memcpy(bytes_.data(), &size, sizeof(size));
    return std::move(bytes_);
  }

 private:
  template <class T>
  Writer& put(const T* values, size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count > 0) bytes_.append(reinterpret_cast<const char*>(values), count * sizeof(T));
    return *this;
  }

  std::string bytes_;
};

// Reads a payload. Throws Error(kInternal) where it is too short.
class Reader {
 public:
  explicit Reader(std::string_view payload) : left_(payload) {}

  template <class T>
  T get() {
    T value;
    const std::string_view bytes = take(sizeof(T));
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string text() { return std::string(take(get<uint32_t>())); }
  template <class T>
  std::vector<T> list() {
    const std::string_view bytes = take(size_t{get<uint32_t>()} * sizeof(T));
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  SpecialTokens special_tokens() {
    SpecialTokens tokens;
    for (auto left = get<uint32_t>(); left > 0; --left) {
      const auto token = get<int32_t>();
      tokens.emplace_back(token, text());
    }
    return tokens;
  }
  std::string rest() { return std::string(std::exchange(left_, {})); }

 private:
  std::string_view take(size_t size) {
    if (size > left_.size()) throw internal_error("a frame is too short");
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
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

struct Vocabulary {
  std::vector<std::string> tokens;  // the bytes of each; none: a special one
  SpecialTokens special;
  std::vector<int32_t> stop_token_ids;
};

inline std::string frame_of(const Vocabulary& vocabulary) {
  Writer writer(kVocabulary);
  writer.put(static_cast<uint32_t>(vocabulary.tokens.size()));
  for (const std::string& token : vocabulary.tokens) writer.put_text(token);
  return writer.put_special_tokens(vocabulary.special).put_list(vocabulary.stop_token_ids).take();
}

inline Vocabulary read_vocabulary(const std::string& payload) {
  Reader reader(payload);
  Vocabulary vocabulary;
  for (auto left = reader.get<uint32_t>(); left > 0; --left) vocabulary.tokens.push_back(reader.text());
  vocabulary.special = reader.special_tokens();
  vocabulary.stop_token_ids = reader.list<int32_t>();
  return vocabulary;
}

}  // namespace wire

}  // namespace turbomind
