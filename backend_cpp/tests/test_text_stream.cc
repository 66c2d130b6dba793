// Text that may be shown: stop strings, whole characters.
#include <random>

#include "engine/generation/text_stream.h"
#include "tests/check.h"

namespace turbomind::testing {

namespace {

struct Streamed {
  std::string text;
  bool is_stopped = false;
  bool all_whole = true;  // every piece was whole characters
};

bool is_whole(const std::string& piece) {
  return piece.empty() || ((piece[0] & 0xC0) != 0x80 && [&] {
           size_t i = piece.size();
           while (i > 0 && (piece[i - 1] & 0xC0) == 0x80) --i;
           const auto lead = static_cast<unsigned char>(piece[i - 1]);
           const size_t need = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
           return piece.size() - (i - 1) == need;
         }());
}

Streamed stream(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  const std::vector<StringPattern> patterns(stops.begin(), stops.end());
  TextStream text(patterns);
  Streamed result;
  for (const std::string& piece : pieces) {
    result.is_stopped = text.append(piece, true);
    const std::string shown = text.take();
    result.all_whole = result.all_whole && is_whole(shown);
    result.text += shown;
    if (result.is_stopped) return result;
  }
  result.text += text.take_rest();
  return result;
}

}  // namespace

TEST(of_stop_strings_that_end_at_one_place_the_longest_is_reported) {
  for (const std::vector<std::string>& stops :
       {std::vector<std::string>{"bc", "abc", "c"}, std::vector<std::string>{"abc", "c", "abcd"}}) {
    const std::vector<StringPattern> patterns(stops.begin(), stops.end());
    TextStream text(patterns);
    CHECK(!text.append("xab", true));
    CHECK(text.stopped_by() == nullptr);
    CHECK(text.append("cd", true));
    CHECK_EQUAL(text.stopped_by()->text(), "abc");
    CHECK_EQUAL(text.take(), "x");
  }
}

TEST(a_stop_string_split_over_any_pieces_never_leaks) {
  const std::string response = "one two aabaabaac three";
  const std::vector<std::string> stops = {"aabaac", "never"};
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::string> pieces;
    for (size_t position = 0; position < response.size();) {
      const size_t length = 1 + random() % 4;
      pieces.push_back(response.substr(position, length));
      position += length;
    }
    const Streamed result = stream(pieces, stops);
    CHECK(result.is_stopped);
    CHECK_EQUAL(result.text, "one two aab");
  }
}

TEST(text_that_only_began_like_a_stop_string_is_released) {
  CHECK_EQUAL(stream({"say ST", "O", "W it"}, {"STOP"}).text, "say STOW it");
  CHECK_EQUAL(stream({"ends in STO"}, {"STOP"}).text, "ends in STO");
  CHECK_EQUAL(stream({"x"}, {}).text, "x");
}

TEST(the_earliest_stop_string_counts_and_of_those_the_longest) {
  CHECK_EQUAL(stream({"a b c d"}, {"c", "b"}).text, "a ");
  CHECK_EQUAL(stream({"hello END"}, {"END", "lo END"}).text, "hel");
}

TEST(characters_split_over_bytes_come_out_whole) {
  const std::string response = "h\xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x99\x82!";
  std::vector<std::string> bytes;
  for (const char c : response) bytes.emplace_back(1, c);
  const Streamed result = stream(bytes, {"zzz"});
  CHECK_EQUAL(result.text, response);
  CHECK(result.all_whole);
}

TEST(ill_formed_bytes_become_replacement_characters_and_an_unfinished_end_is_dropped) {
  const std::string replacement = "\xEF\xBF\xBD";
  CHECK_EQUAL(stream({"a\xFF", "b"}, {}).text, "a" + replacement + "b");
  CHECK_EQUAL(stream({"\xE4\xBD", "x"}, {}).text, replacement + "x");
  CHECK_EQUAL(stream({"\xED\xA0\x80"}, {}).text, replacement + replacement + replacement);
  CHECK_EQUAL(stream({"ok\xF0\x9F\x99"}, {}).text, "ok");
}

TEST(any_bytes_become_valid_text) {
  CHECK_EQUAL(valid_utf8("root ::= \u4e2d"), "root ::= \u4e2d");
  CHECK_EQUAL(valid_utf8(std::string_view("a\xE4\xB8\xAD\xE4\xB8")), "a\u4e2d\uFFFD");
  CHECK_EQUAL(valid_utf8(std::string_view("\xFF\xC3(\x80")), "\uFFFD\uFFFD(\uFFFD");
}

TEST(stop_strings_wait_until_stopping_is_allowed) {
  const std::vector<StringPattern> patterns{StringPattern("no")};
  TextStream text(patterns);
  CHECK(!text.append("no, ", false));
  CHECK_EQUAL(text.take(), "no, ");
  CHECK(text.append("no!", true));
  CHECK_EQUAL(text.take(), "");
}

TEST(streams_share_a_stop_string_and_match_it_apart) {
  const std::vector<StringPattern> patterns{StringPattern("STOP")};
  TextStream one(patterns);
  TextStream other(patterns);
  CHECK(!one.append("ST", true));
  CHECK(!other.append("OP", true));
  CHECK_EQUAL(other.take(), "OP");
  CHECK(one.append("OP", true));
}

}  // namespace turbomind::testing
