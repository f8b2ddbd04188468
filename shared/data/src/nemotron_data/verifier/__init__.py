"""Whether a completion is the right answer: one judgement for rewards, for evaluation and for checking data.

    judge("<think>3+4=7</think>The answer is 7.", "7")     Verdict(strict=True, lenient=True, answer="7")
    judge("So Ann has 7 apples left.", "7")                Verdict(strict=False, lenient=True, answer="7 apples left.")
    judge("<think>so 7", "7")                              Verdict(strict=False, lenient=False, answer=None)

`lenient`: the final answer has the value of the expected one, in any form. `strict`: it is also given cleanly,
so that a program finds it: alone, in \\boxed{...}, after ####, or as "The answer is ..." at the end. What stands after
the thinking counts; thinking that was never closed earns nothing. Of several claims the last one counts, and two at
once ("7 or 8") count as no answer.

What an expected answer is decides how it is compared: numbers exactly, as fractions (1,234 = 1234.0, 50 % = 0.5);
mathematics with math-verify; choices by their letter; anything else as text.
"""

from nemotron_data.verifier.judgement import AS_TAUGHT, Expected, Kind, Verdict, expected, is_as_taught, judge

__all__ = ["AS_TAUGHT", "Expected", "Kind", "Verdict", "expected", "is_as_taught", "judge"]
