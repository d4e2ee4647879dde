"""The story of a run: what happened when, what it cost, and how each of these is known.

recording = Recording(); recording.add(step)                # of each step, from pages, a log or the ledger
story = build_story(document, recording, health_events); print(text.render(story))
"""
