"""The tables of the report, in Markdown: the best number is bold, the second underlined."""

TABLE_1 = """
Ground Truth         | 7.93 | 6.76 | 0.861 | 4.75
Kling O3 Pro (2026)  | 5.16 | 10.07 | <u>0.838</u> | 4.80
Veo 3.1 (2025)       | 8.05 | 7.28 | 0.714 | **4.95**
OmniHuman 1.5 (2025) | 7.53 | 8.25 | 0.732 | 4.70
Seedance 2.0 (2026)  | <u>8.86</u> | <u>6.99</u> | 0.823 | <u>4.85</u>
Avatar V (Ours)      | **8.97** | **6.75** | **0.840** | <u>4.85</u>
"""
TABLE_2 = """
Kling O3 Pro (2026)  | 4.18 | 4.40 | <u>4.21</u> | 4.12 | 4.19 | 4.45
Veo 3.1 (2025)       | 4.34 | 4.62 | 3.88 | 4.05 | <u>4.66</u> | <u>4.76</u>
OmniHuman 1.5 (2025) | 4.70 | 4.04 | 3.59 | 3.87 | 3.89 | 3.81
Seedance 2.0 (2026)  | <u>4.84</u> | <u>4.64</u> | 4.13 | <u>4.44</u> | 4.61 | 4.17
Avatar V (Ours)      | **4.98** | **4.69** | **4.48** | **4.57** | **4.75** | **4.78**
"""
TABLE_3 = """
Kling O3 Pro  | 69.6% | 30.4% | 69
Seedance 2.0  | 68.9% | 31.1% | 45
Veo 3.1       | 72.5% | 27.5% | 40
OmniHuman 1.5 | 85.7% | 14.3% | 70
"""
TABLE_4 = """
Real identification accuracy  | 77.8%
Fooled rate (mistaken as real) | 22.2%
Chance level (random guessing) | 50.0%
Cases fooling ≥ 1 annotator | 11/18 (61.1%)
"""
