"""The one palette of the account's states: page, boards, notebook and `goodput top` take it from here, a test compares them.

Useful time is blue, waiting inside steps warm, work around steps green to violet, lost time dark, unknown time grey. All
states differ for readers with deuteranopia too (by 5 or more, 100 x distance in OKLab); lost and unobserved time is also
hatched where that can be drawn.
"""

LIGHT = {
    "productive": "#1261b0",
    "loader": "#e28c03",
    "h2d": "#f7e04f",
    "communication": "#ecaa68",
    "straggler": "#af2d11",
    "bubble": "#ece0a8",
    "launch": "#c07b35",
    "checkpoint": "#86cab2",
    "evaluation": "#65a57a",
    "rollout": "#6a1650",
    "compile": "#c3a6f9",
    "startup": "#a572c9",
    "restore": "#5e248a",
    "stall": "#c04d55",
    "lost": "#712b2e",
    "down": "#4f5a63",
    "queue": "#97a9b8",
    "unattributed": "#c9d2de",
    "unobserved": "#78818c",
}
# The darkest ones a shade lighter, on a dark ground.
DARK = {
    **LIGHT,
    "productive": "#2a73c4",
    "straggler": "#c43b1a",
    "rollout": "#8a2a68",
    "startup": "#b57fd6",
    "restore": "#7a3fa8",
    "lost": "#8a3a3e",
    "down": "#5f6c77",
}
