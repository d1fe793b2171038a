"""Names that all worlds use."""

NAMESPACES = ("red", "blue", "green")
TOPICS = ("a", "b")
NARROW_TOPICS = ("t1", "t2", "t3", "t4")  # of scenes of limits, and of nothing else
NODE_TOPICS = ("n", "m")
SOLO_TOPIC = "solo"  # of items that follow one another under a key
SCENE_TOPIC = "scene"  # of nodes of scenes
PLAY_TOPICS = ("p1", "p2", "p3", "p4", "p5", "p6")  # of scenes, each for one at a time
ENDS = "ends"
