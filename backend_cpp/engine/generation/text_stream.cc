#include "engine/generation/text_stream.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace turbomind {

namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD

struct Decoded {
  int bytes;  // length of the character, or of the ill-formed run
  bool is_valid;
  bool is_unfinished;  // the text ends inside what may become a character
};

// Well-formed byte sequences: Unicode 15, table 3-7.
Decoded decode_one(std::string_view text) {  // #lizard forgives: the table, row by row
  const auto byte_at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte_at(0);
  if (lead < 0x80) return {1, true, false};
  const int length = lead >= 0xC2 && lead <= 0xDF   ? 2
                     : lead >= 0xE0 && lead <= 0xEF ? 3
                     : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                    : 0;
  if (length == 0) return {1, false, false};
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {i, false, true};
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (byte_at(static_cast<size_t>(i)) < low || byte_at(static_cast<size_t>(i)) > high) return {i, false, false};
  }
  return {length, true, false};
}

}  // namespace

StringPattern::StringPattern(std::string text) : text_(std::move(text)), failure_(text_.size(), 0) {
  for (size_t i = 1; i < text_.size(); ++i) failure_[i] = next(failure_[i - 1], text_[i]);
}

int StringPattern::next(int state, char byte) const {
  while (state > 0 && (state == length() || text_[static_cast<size_t>(state)] != byte))
    state = failure_[static_cast<size_t>(state) - 1];
  return text_[static_cast<size_t>(state)] == byte ? state + 1 : 0;
}

std::string valid_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const Decoded decoded = decode_one(text);
    valid += decoded.is_valid ? text.substr(0, static_cast<size_t>(decoded.bytes)) : kReplacement;
    text.remove_prefix(static_cast<size_t>(decoded.bytes));
  }
  return valid;
}

bool TextStream::append(std::string_view bytes, bool may_stop) {
  if (stopped_by_ != nullptr) return true;
  for (const char byte : bytes) {
    pending_ += byte;
    const StringPattern* longest = nullptr;
    for (size_t i = 0; i < states_.size(); ++i) {
      const StringPattern& stop = stop_strings_[i];
      states_[i] = stop.next(states_[i], byte);
      if (stop.is_complete(states_[i]) && (longest == nullptr || stop.length() > longest->length())) longest = &stop;
    }
    // A match may reach back into bytes already shown only if stopping was not allowed when they were; keep those.
    if (longest != nullptr && may_stop) {
      pending_.resize(pending_.size() - std::min(static_cast<size_t>(longest->length()), pending_.size()));
      stopped_by_ = longest;
      return true;
    }
  }
  return false;
}

std::string TextStream::take() {
  if (stopped_by_ != nullptr) return release(pending_.size(), true);
  size_t withheld = 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    withheld = std::max(withheld, static_cast<size_t>(stop_strings_[i].unfinished(states_[i])));
  }
  return release(pending_.size() - std::min(withheld, pending_.size()), false);
}

std::string TextStream::release(size_t count, bool at_end) {
  std::string text;
  size_t position = 0;
  while (position < count) {
    const Decoded decoded =
        decode_one(std::string_view(pending_).substr(position, at_end ? count - position : std::string_view::npos));
    // A character that reaches into the held bytes, or beyond the end, waits.
    if (decoded.is_unfinished && !at_end) break;
    if (decoded.is_unfinished) {
      if (stopped_by_ != nullptr) text += kReplacement;  // the stop string follows, which does not finish it
      position = count;
      break;
    }
    if (position + static_cast<size_t>(decoded.bytes) > count) break;
    const auto length = static_cast<size_t>(decoded.bytes);
    text += decoded.is_valid ? std::string_view(pending_).substr(position, length) : kReplacement;
    position += length;
  }
  pending_.erase(0, position);
  return text;
}

}  // namespace turbomind
