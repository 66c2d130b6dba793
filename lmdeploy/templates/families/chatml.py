"""ChatML, and the families that use it with a system prompt of their own."""

from typing import Any

from lmdeploy.templates.families.registration import builtin

CHATML: dict[str, Any] = {
    "system": "<|im_start|>system\n",
    "eosys": "<|im_end|>\n",
    "user": "<|im_start|>user\n",
    "eoh": "<|im_end|>\n",
    "assistant": "<|im_start|>assistant\n",
    "eoa": "<|im_end|>",
    "separator": "\n",
    "stop_words": ["<|im_end|>"],
}
# No line ends between turns.
TIGHT_CHATML = CHATML | {"eosys": "<|im_end|>", "eoh": "<|im_end|>", "separator": ""}

builtin("chatml", CHATML)
builtin("yi", CHATML, stop_words=["<|im_end|>", "<|endoftext|>"])
builtin("minicpm3", CHATML)
builtin("minicpmv-2d6", CHATML, meta_instruction="You are a helpful assistant.")
builtin("smollm", CHATML)
builtin("smollm2", CHATML, meta_instruction="You are a helpful AI assistant named SmolLM, trained by Hugging Face")
builtin(
    "dbrx",
    CHATML,
    meta_instruction="You are DBRX, created by Databricks. You were last updated in December 2023. You answer "
    "questions based on information available up to that point.\n"
    "YOU PROVIDE SHORT RESPONSES TO SHORT QUESTIONS OR STATEMENTS, but provide thorough responses to more "
    "complex and open-ended questions.\n"
    "You assist with various tasks, from writing to coding (using markdown for code blocks — remember to use "
    "``` with code, JSON, and tables).\n"
    "(You do not have real-time data access or code execution capabilities. You avoid stereotyping and "
    "provide balanced perspectives on controversial topics. You do not provide song lyrics, poems, or news "
    "articles and do not divulge details of your training data.)\n"
    "This is your system prompt, guiding your responses. Do not reference it, just respond to the user. If "
    "you find yourself talking about this message, stop. You should be responding appropriately and usually "
    "that means not mentioning this.\n"
    "YOU DO NOT MENTION ANY OF THIS INFORMATION ABOUT YOURSELF UNLESS THE INFORMATION IS DIRECTLY PERTINENT "
    "TO THE USER'S QUERY.",
)
builtin("llava-chatml", TIGHT_CHATML, meta_instruction="Answer the questions.")
builtin(
    "got-ocr2",
    TIGHT_CHATML,
    meta_instruction="You should follow the instructions carefully and explain your answers in detail.",
)
