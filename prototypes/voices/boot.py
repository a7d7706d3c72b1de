import torch,numpy as np,glob
rng=np.random.default_rng(0)
def best(rs): # list of res of one arm: one common shift
    keys=list(rs[0]['real']); s=max(range(-6,7),key=lambda s:np.mean([r['real'][k][s] for r in rs for k in keys])); return s,np.array([np.mean([r['real'][k][s] for r in rs]) for k in keys])
def cmp(name,a,b):
    A=[torch.load(f) for f in a];B=[torch.load(f) for f in b]; sa,x=best(A);sb,y=best(B); d=y-x
    i=rng.integers(7,size=(20000,7)); m=d[i].mean(1)
    v=[ [np.mean(r[k]) for r in R] for R in (A,B) for k in ('val_synth','val_rec')]
    print(name,'r %.3f (shift %d) -> %.3f (shift %d), paired %+.3f (%.3f … %.3f)'%(x.mean(),sa,y.mean(),sb,d.mean(),*np.quantile(m,[.025,.975])),'val synth/rec',[round(float(np.mean(q)),3) for q in v], 'per clip',np.round(d,2))
cmp('reg 53min half',[f'res_synth_{s}.pt' for s in range(3)],[f'res_half_{s}.pt' for s in range(3)])
cmp('reg 53min rec',[f'res_synth_{s}.pt' for s in range(3)],[f'res_recorded_{s}.pt' for s in range(3)])
cmp('reg 160min half',[f'res2_synth_{s}.pt' for s in range(2)],[f'res2_half_{s}.pt' for s in range(2)])
cmp('reg 160min rec',[f'res2_synth_{s}.pt' for s in range(2)],[f'res2_recorded_{s}.pt' for s in range(2)])
cmp('mot frozen 400',['mot_synth_0_400.pt'],['mot_half_0_400.pt'])
cmp('shipped vs mot frozen 400 half',['mot_shipped_0_0.pt'],['mot_half_0_400.pt'])
cmp('mot enc 400',['mot2_synth_0_400_enc.pt'],['mot2_half_0_400_enc.pt'])
cmp('shipped vs enc half',['mot_shipped_0_0.pt'],['mot2_half_0_400_enc.pt'])
